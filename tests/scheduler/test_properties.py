"""Properties of plug-ins that fail are told as methods that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.scheduler_driver import SchedulerDriver
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.combined import Combined
from metropolis.policy.faults import PluginError
from metropolis.policy.fixed import Fcfs, StepFirst
from metropolis.scheduler.base import Place
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.options import PoolOptions


def queued(number: int) -> QueuedRequest:
    return QueuedRequest(number, f"p{number}", "f", 10, 0.0, 0.0)


def failing(base: type[Any], name: str, is_failing: list[bool]) -> type[Any]:
    """A plug-in whose property `name` fails while `is_failing`."""
    kept = f"_kept_{name}"

    def get(self: object) -> object:
        if is_failing[0]:
            raise ZeroDivisionError
        default = getattr(base, name, None)
        return getattr(self, kept, default.fget(self) if isinstance(default, property) else default)

    return type("Broken", (base,), {name: property(get, lambda s, value: setattr(s, kept, value))})


def driver(policy: Policy, dispatcher: Dispatcher) -> SchedulerDriver:
    scheduling = SchedulerDriver(policy, dispatcher, 1, 9, lambda: 0.0)
    scheduling.scheduler.on_fault = lambda _: None
    scheduling.set_is_up(0, True)
    return scheduling


class First(Dispatcher):
    """Places on the first instance, while it is open, and reads nothing else."""

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        return None if self.closed else 0


FLEET = Fleet.uniform(1, 1000, 10.0)
READ = [
    ("policy", "version"),
    ("policy", "running_version"),
    ("policy", "rank_bits"),
    ("policy", "due_s"),
    ("dispatcher", "fleet"),
]


@pytest.mark.parametrize(("kind", "name"), READ)
def test_a_property_that_fails_rejects_what_waits_with_a_sentence(kind: str, name: str) -> None:
    async def run() -> None:
        is_failing = [False]
        is_policy = kind == "policy"
        policy = failing(Fcfs, name, is_failing)() if is_policy else Fcfs()
        broken = First if is_policy else failing(First, name, is_failing)
        scheduling = driver(policy, broken(FLEET))
        assert (await scheduling.place(queued(0))).instance == 0
        waits = [asyncio.create_task(scheduling.place(queued(n))) for n in (1, 2)]
        await asyncio.sleep(0)
        is_failing[0] = True
        scheduling.cancel(queued(0))  # its place is free
        *placed, error = await asyncio.gather(*waits, return_exceptions=True)
        beginning = f"the {kind} Broken failed in {name}: {__file__}:"
        assert isinstance(error, PluginError)
        assert str(error).startswith(beginning)
        if name == "due_s":  # it is read after the first has been placed
            assert [one.instance for one in placed if isinstance(one, Place)] == [0]
            scheduling.cancel(queued(1))
        else:
            assert str(placed[0]) == str(error)
        assert (len(scheduling), scheduling.in_flight) == (0, [0])
        is_failing[0] = False
        assert (await scheduling.place(queued(5))).instance == 0

    asyncio.run(run())


def test_preempts_is_read_once_at_the_start() -> None:
    is_failing = [False]
    policy = failing(Fcfs, "preempts", is_failing)()
    driver(policy, LeastLoaded(FLEET))
    is_failing[0] = True
    with pytest.raises(PluginError, match="the policy Broken failed in preempts: "):
        driver(policy, LeastLoaded(FLEET))


@pytest.mark.parametrize("bits", [None, 0, 63])
def test_rank_bits_that_are_no_width_are_told(bits: int | None) -> None:
    class Wide(Fcfs):
        rank_bits = bits  # type: ignore[assignment]

    sentence = f"the policy Wide returned the rank_bits {bits}; they should be from 1 to 62"
    with pytest.raises(PluginError, match=sentence):
        driver(Wide(), LeastLoaded(FLEET)).scheduler.arrived(queued(0))


@pytest.mark.parametrize("name", ["version", "running_version", "rank_bits", "due_s"])
def test_a_chain_names_the_policy_that_fails(name: str) -> None:
    is_failing = [False]
    policy = Combined([StepFirst(), failing(Fcfs, name, is_failing)()])
    scheduler = driver(policy, LeastLoaded(FLEET)).scheduler
    is_failing[0] = True
    found: list[str] = []
    scheduler.on_fault = lambda error: found.append(str(error))
    try:
        scheduler.arrived(queued(0))
        scheduler.arrived(queued(1))
        scheduler.schedule(0.0)
    except PluginError as error:
        found.append(str(error))
    assert {one.split(":")[0] for one in found} == {f"the policy Broken failed in {name}"}


def test_a_cancellation_ranks_nothing() -> None:
    """It would fail with the policy although nothing is decided."""
    scheduling = driver(Fcfs(), LeastLoaded(FLEET))
    scheduling.set_is_up(0, False)
    for number in range(3000):
        scheduling.scheduler.arrived(queued(number))
    scheduling.scheduler.policy.rank = lambda _: -1  # type: ignore[method-assign]
    for number in range(2999):
        scheduling.scheduler.cancelled(number, 0.0)
    assert len(scheduling) == 1


class Overdue(Fcfs):
    """Wants to be called again at a time that has passed."""

    due_s = -1.0
    calls = 0

    def passed(self, now_s: float) -> None:
        self.calls += 1


SENTENCE = "^the policy Overdue has the due_s -1 after it passed 0; it should be later$"


def test_a_due_time_in_the_past_rejects_what_waits() -> None:
    async def run() -> None:
        policy = Overdue()
        scheduling = driver(policy, First(FLEET))
        assert (await scheduling.place(queued(0))).instance == 0
        with pytest.raises(PluginError, match=SENTENCE):
            await asyncio.wait_for(scheduling.place(queued(1)), 5.0)
        calls = policy.calls
        await asyncio.sleep(0.05)
        assert policy.calls == calls
        assert len(scheduling) == 0

    asyncio.run(run())


def test_a_due_time_in_the_past_ends_a_simulation() -> None:
    profile = Profile(w_ms=10.0, g_ms=0.05, h_ms=2.0, b_ms=0.1, kv_capacity_tokens=1 << 20)
    cluster = SimulatedCluster([profile], Overdue(), First(FLEET), PoolOptions(), at_once=1)
    for number in range(2):
        cluster.send(queued(number), 5)
    cluster.dispatch(0.0)
    assert cluster.next_event_sim_s() == 0.0
    cluster.advance(0.0)
    with pytest.raises(PluginError, match=SENTENCE):
        cluster.dispatch(0.0)
