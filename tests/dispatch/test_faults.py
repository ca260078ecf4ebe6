"""Faulty plug-ins in virtual time: one sentence that names them, and no run without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.combined import Combined
from metropolis.policy.faults import PluginError
from metropolis.policy.fixed import Fcfs, StepFirst
from metropolis.policy.kairos.policy import Kairos
from metropolis.policy.mlfq import Mlfq
from metropolis.runtime.replays.replay import replay
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import load_profile
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.generate.agentic import CO_LOCATED, workload
from tests.runtime.test_replay import setting_for
from tests.small_traces import small_trace

PROFILE = load_profile("llama-3-8b/l4")
FLEET = Fleet.uniform(2, PROFILE.kv_capacity_tokens, 12.0)


class Halved(Fcfs):
    def rank(self, request: QueuedRequest) -> int:
        return 0.5  # type: ignore[return-value]


class Below(StepFirst):
    def rank(self, request: QueuedRequest) -> int:
        return -1


class Astray(LeastLoaded):
    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        return 99


class Failing(Fcfs):
    def rank(self, request: QueuedRequest) -> int:
        raise KeyError("x")


class Deaf(StepFirst):
    def arrived(self, request: QueuedRequest) -> None:
        raise KeyError("x")


class Textual(StepFirst):
    version = "1"  # type: ignore[assignment]


class Lost(LeastLoaded):
    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        raise ValueError("lost")


class Hesitant(LeastLoaded):
    """Places the first request, and never again."""

    has_placed = False

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        if self.has_placed:
            return None
        self.has_placed = True
        return super().place(request, now_s)


FAULTS: list[tuple[Callable[[], Policy], type[Dispatcher], str]] = [
    (Halved, LeastLoaded, "the policy Halved returned the rank 0.5; a rank is an int from 0"),
    (
        lambda: Combined([Below(), Kairos()]),
        LeastLoaded,
        "the policy Below returned the rank",
    ),
    (Fcfs, Astray, "the dispatcher Astray placed a request on the instance 99; .* are 0 to 1"),
    (
        Failing,
        LeastLoaded,
        r"the policy Failing failed in rank: .*test_faults\.py:\d+: KeyError: 'x'; fix",
    ),
    (
        lambda: Combined([Deaf(), Kairos()]),
        LeastLoaded,
        r"policy Deaf failed in arrived: .*test_faults\.py:\d",
    ),
    (Textual, LeastLoaded, "the policy Textual returned the version '1'; it should be an int"),
    (
        Fcfs,
        Lost,
        r"the dispatcher Lost failed in place: .*test_faults\.py:\d+: ValueError: lost; fix it",
    ),
    (Fcfs, Hesitant, r"the dispatcher Hesitant defers \d+ requests although no instance is"),
]


def failing(base: type[Any], method: str) -> type[Any]:
    """A class made like `base` whose `method` raises a KeyError."""

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("x")

    fail.__name__ = method
    if method == "due_s":  # asked for while requests may make place
        return type("Broken", (base,), {"preempts": True, "due_s": property(fail)})
    return type("Broken", (base,), {method: fail})


EVERYWHERE: list[tuple[str, str]] = [
    *(("policy", method) for method in ("arrived", "started", "passed", "completed", "rank")),
    *(("policy", method) for method in ("program_ended", "due_s", "preempted")),
    *(("dispatcher", method) for method in ("place", "completed", "program_ended", "preempted")),
]
SMALL = Profile(w_ms=30.0, g_ms=1.0, kv_capacity_tokens=4000, block_tokens=1)
"""It runs out of memory."""


@pytest.mark.parametrize(("kind", "method"), EVERYWHERE)
@pytest.mark.parametrize("is_combined", [False, True])
def test_whatever_raises_is_named_with_its_method(
    kind: str, method: str, is_combined: bool
) -> None:
    is_plain = (kind, method) in (("dispatcher", "preempted"), ("policy", "due_s"))
    base = Fcfs if is_plain else Mlfq  # which preempts before an engine has to
    made = failing(base, method)() if kind == "policy" else base()
    policy = Combined([StepFirst(), made]) if is_combined else made
    dispatcher = (failing(LeastLoaded, method) if kind == "dispatcher" else LeastLoaded)(FLEET)
    programs = workload(CO_LOCATED, 40, 40.0, seed=3)
    serving = WorkloadSimulation(programs, [SMALL] * 2, policy, dispatcher, PoolOptions())
    sentence = f"^the {kind} Broken failed in {method}: {__file__}:\\d+: KeyError: 'x'; fix it"
    with pytest.raises(PluginError, match=sentence):
        serving.run()


@pytest.mark.parametrize(("policy", "dispatcher", "sentence"), FAULTS)
def test_served_programs_end_in_a_sentence(
    policy: Callable[[], Policy], dispatcher: type[Dispatcher], sentence: str
) -> None:
    programs = workload(CO_LOCATED, 10, 4.0, seed=3)
    serving = WorkloadSimulation(
        programs, [PROFILE] * 2, policy(), dispatcher(FLEET), PoolOptions()
    )
    with pytest.raises(PluginError, match=sentence):
        serving.run()


@pytest.mark.parametrize(("policy", "dispatcher", "sentence"), FAULTS)
def test_a_replay_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    policy: Callable[[], Policy],
    dispatcher: type[Dispatcher],
    sentence: str,
) -> None:
    trace = small_trace(1, agents=4, steps=6, edge=9, radius=2, velocity=1)
    made = policy(), dispatcher(FLEET)
    monkeypatch.setattr("metropolis.runtime.replays.replay.plug_ins", lambda *_: made)
    with pytest.raises(PluginError, match=sentence):
        replay(trace, "conservative", setting_for(trace, policy="fcfs", dispatcher="least_used"))
