"""A run in virtual time takes exactly as long as the replay of its trace, in every mode.

Equal to the last bit, except in `sequential`: there concurrent calls of one agent-step run in
another order, and sums of the same durations differ by rounding.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metropolis.llm import Client, Completion, Request, UnavailableError
from metropolis.llm.backends.scripted import Scripted
from metropolis.policy.base import QueuedRequest
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.replay import Setting, plug_ins, replay
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.schema import Trace
from tests.runtime.talkers import ALL_WAYS, WAYS, PlainTalker, Square, Talker, author

PROFILE = "llama-3-8b/l4"
MODES = ("sequential", "lockstep", "versioned", "conservative")
"""Modes, as named in replays."""
CAMPAIGN = int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "500"))
"""Worlds; each runs five times and is replayed 17 times."""


@dataclass(frozen=True)
class Case:
    """A run: its world, agents and instances."""

    seed: int
    agents: int
    side: int
    steps: int
    instances: int
    plain: float
    """Share of agents that run in threads."""
    ways: tuple[str, ...] = WAYS
    """Ways in which the other agents call."""
    policy: str | None = None
    dispatcher: str | None = None
    profiles: tuple[str, ...] = (PROFILE,)
    """Names of profiles, which the instances have in turn."""

    @property
    def fleet(self) -> SimulatedFleet:
        """The instances."""
        return SimulatedFleet.parse(self.profiles).of_size(self.instances)

    def run(self, mode: str) -> RunResult:
        """Run live in virtual time."""
        world = Square(self.agents, self.side, self.seed)
        draw = Random(self.seed)
        agents = [
            PlainTalker(name, self.seed)
            if draw.random() < self.plain
            else Talker(name, self.seed, self.ways)
            for name in world.names
        ]
        client = Client(self.virtual())
        live: dict[str, Any] = (
            {"mode": "out_of_order", "rule": mode}
            if mode in ("versioned", "conservative")
            else {"mode": mode}
        )
        return Simulation(world, agents, client, **live).run(self.steps)

    def virtual(self) -> VirtualInstances:
        fleet = self.fleet
        if self.policy is None:
            return VirtualInstances(backend(), fleet)
        policy, dispatcher = plug_ins(self.policy, self.dispatcher, fleet.dispatcher_view())
        return VirtualInstances(backend(), fleet, policy=policy, dispatcher=dispatcher)

    def replayed_sim_s(self, trace: Trace, mode: str) -> float:
        """Return the makespan as in the table at the end of a run."""
        setting = Setting.of(trace.meta, self.fleet)
        if self.policy is not None:
            setting = replace(setting, policy=self.policy, dispatcher=self.dispatcher)
        return replay(trace, mode, setting).makespan_sim_s


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    agents=st.integers(1, 7),
    side=st.integers(1, 9),
    steps=st.integers(1, 6),
    instances=st.integers(1, 3),
    plain=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
)


def assert_equal(mode: str, replayed_sim_s: float, live_sim_s: float) -> None:
    if mode == "sequential":
        assert replayed_sim_s == pytest.approx(live_sim_s, rel=1e-9)
    else:
        assert replayed_sim_s == live_sim_s


def check_any_mode(case: Case) -> None:
    ran = {mode: case.run(mode) for mode in MODES}
    assert len({result.history_sha256 for result in ran.values()}) == 1
    for recorded in ran.values():
        for mode, live in ran.items():
            replayed_sim_s = case.replayed_sim_s(recorded.trace, mode)
            if _numbered_alike(recorded.trace, live.trace):
                assert_equal(mode, replayed_sim_s, live.makespan_s)
            else:
                assert replayed_sim_s == pytest.approx(live.makespan_s, rel=0.05)


def _numbered_alike(a: Trace, b: Trace) -> bool:
    """Whether the traces have the same calls in the same order.

    Concurrent branches of one agent-step are numbered as they call, so latencies may change the
    order of their calls, and with it which of those sent at the same instant comes first.
    """
    columns = ("prompt_tokens", "output_tokens", "parents", "parent_offsets")
    return all(np.array_equal(getattr(a.calls, one), getattr(b.calls, one)) for one in columns)


def check_own_mode(case: Case, mode: str) -> None:
    ran = replace(case, ways=ALL_WAYS).run(mode)
    assert_equal(mode, case.replayed_sim_s(ran.trace, mode), ran.makespan_s)


@given(cases)
@example(Case(seed=3, agents=6, side=3, steps=6, instances=1, plain=0.0))
@example(Case(seed=2709770, agents=6, side=1, steps=2, instances=2, plain=0.0))
@settings(max_examples=25, deadline=None)
def test_a_run_takes_as_long_as_any_modes_trace_of_it_says(case: Case) -> None:
    check_any_mode(case)


@given(cases, st.sampled_from(MODES))
@settings(max_examples=25, deadline=None)
def test_with_locks_as_long_as_its_own_trace_says(case: Case, mode: str) -> None:
    check_own_mode(case, mode)


@given(
    cases,
    st.sampled_from(MODES),
    st.sampled_from(("fcfs", "step", "mlfq", "plas", "step+atlas", "kairos")),
    st.sampled_from((None, "round_robin", "agentix", "kairos")),
)
@settings(max_examples=40, deadline=None)
def test_policies_and_dispatchers_act_in_a_run_as_in_its_replay(
    case: Case, mode: str, policy: str, dispatcher: str | None
) -> None:
    check_own_mode(replace(case, policy=policy, dispatcher=dispatcher), mode)


def test_kairos_learns_at_the_same_time_in_a_run_and_in_its_replay() -> None:
    case = Case(seed=0, agents=4, side=1, steps=2, instances=2, plain=0.0, policy="kairos")
    check_own_mode(case, "lockstep")


@pytest.mark.parametrize("seed", range(4))
def test_a_call_has_the_same_upstream_in_a_run_as_in_its_replay(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[tuple[int | None, str, str | None, int]] = Counter()
    send = SimulatedCluster.send

    def record(cluster: SimulatedCluster, request: QueuedRequest, *answer: Any) -> None:
        sent[request.step, request.function, request.upstream, request.prompt_tokens] += 1
        send(cluster, request, *answer)

    monkeypatch.setattr(SimulatedCluster, "send", record)
    case = Case(seed, 6, 3, 6, 2, 0.0, policy="kairos")
    trace = case.run("versioned").trace
    assert trace is not None
    live = sent.copy()
    sent.clear()
    case.replayed_sim_s(trace, "versioned")
    assert sent == live
    assert len({upstream for _, _, upstream, _ in live}) > 8


@given(cases, st.sampled_from(MODES), st.sampled_from(((None, None), ("plas", "kairos"))))
@settings(max_examples=25, deadline=None)
def test_different_instances_act_in_a_run_as_in_its_replay(
    case: Case, mode: str, served: tuple[str | None, str | None]
) -> None:
    policy, dispatcher = served
    unequal = replace(case, profiles=(PROFILE, "llama-3-8b/h100", "llama-3-70b/a100-tp4"))
    check_own_mode(replace(unequal, policy=policy, dispatcher=dispatcher), mode)


@pytest.mark.campaign
@given(cases, st.sampled_from(MODES))
@settings(max_examples=CAMPAIGN, deadline=None)
def test_campaign(case: Case, mode: str) -> None:
    check_any_mode(case)
    check_own_mode(case, mode)


class Flaky(Scripted):
    """Fails every third time with a transient error."""

    def __init__(self) -> None:
        super().__init__(author)
        self.asked = 0

    async def complete(self, request: Request) -> Completion:
        self.asked += 1
        if self.asked % 3 == 0:
            raise UnavailableError("busy")
        return await super().complete(request)


def test_pauses_before_a_call_is_sent_again_take_no_virtual_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.llm.pauses.FIRST_S", 0.02)
    case = Case(seed=3, agents=4, side=4, steps=3, instances=2, plain=0.5)
    expected = case.run("lockstep").makespan_s
    monkeypatch.setattr("tests.runtime.test_live_is_replayed.backend", Flaky)
    flaky = case.run("lockstep")
    assert sum(usage.retries for usage in flaky.usage.values()) > 5
    assert case.replayed_sim_s(flaky.trace, "lockstep") == flaky.makespan_s == expected


def backend() -> Scripted:
    """Make the backend of a case."""
    return Scripted(author)
