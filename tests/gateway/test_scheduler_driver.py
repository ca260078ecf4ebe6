"""Invariants of the scheduler under any order of events, without engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.dispatch.agentix import ProgramAffinity
from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.fixed import LeastLoaded, RoundRobin
from metropolis.dispatch.kairos import KairosPacking
from metropolis.gateway.scheduler_driver import Preemptible, QueueFullError, SchedulerDriver
from metropolis.policy.agentix.policy import Plas
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.combined import Combined
from metropolis.policy.faults import PluginError
from metropolis.policy.fixed import Fcfs, StepFirst, Topology
from metropolis.policy.mlfq import Mlfq
from metropolis.policy.queue import DISCARDED_MAX
from metropolis.scheduler.base import Place
from metropolis.types import MetropolisError
from tests.gateway.engines import until

ENGINES, AT_ONCE = 3, 2
ACTIONS = ("arrive", "answer", "leave engine", "leave queue", "lose", "down", "up", "wait")


def queued(number: int, now_s: float = 0.0, **changes: Any) -> QueuedRequest:
    return QueuedRequest(number, f"program {number % 4}", "f", 10, now_s, now_s, **changes)


class Watched(StepFirst):
    """Records the state of each request and checks every transition."""

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[int, str] = {}

    def arrived(self, request: QueuedRequest) -> None:
        assert request.id not in self.state
        self.state[request.id] = "waits"

    def started(self, request: QueuedRequest, now_s: float) -> None:
        assert self.state[request.id] == "waits"
        self.state[request.id] = "runs"

    def preempted(self, request: QueuedRequest, now_s: float) -> None:
        assert self.state[request.id] == "runs"
        self.state[request.id] = "waits"

    def completed(self, served: ServedRequest) -> None:
        assert self.state[served.request.id] == "runs"
        self.state[served.request.id] = "over"

    def cancelled(self, request: QueuedRequest) -> None:
        assert self.state[request.id] in ("waits", "runs")
        self.state[request.id] = "over"


class World:
    """A scheduler and its waiting and placed requests."""

    def __init__(self, policy: Policy, make: Callable[[Fleet], Dispatcher]) -> None:
        self.now_s = 0.0
        dispatcher = make(Fleet.uniform(ENGINES, 1000, 10.0))
        self.scheduling = SchedulerDriver(policy, dispatcher, AT_ONCE, 10_000, lambda: self.now_s)
        self.numbers = count()
        self.tasks: dict[int, tuple[QueuedRequest, asyncio.Task[Place]]] = {}
        self.placed: dict[int, tuple[QueuedRequest, int]] = {}
        self.requeued: QueuedRequest | None = None
        """The request that the last action took from its engine and queued again."""
        for engine in range(ENGINES):
            self.scheduling.set_is_up(engine, True)

    def ask(self, request: QueuedRequest, is_requeued: bool = False) -> None:
        place = self.scheduling.place(request, is_requeued=is_requeued)
        self.tasks[request.id] = request, asyncio.get_running_loop().create_task(place)

    async def act(self, action: str, choice: int) -> None:
        self.now_s += 0.25
        self.requeued = None
        if action == "arrive":
            self.ask(queued(next(self.numbers), self.now_s, step=choice % 5))
        elif action in ("down", "up"):
            self.scheduling.set_is_up(choice % ENGINES, action == "up")
        elif action == "leave queue" and self.tasks:
            _, task = self.tasks.pop(list(self.tasks)[choice % len(self.tasks)])
            task.cancel()
        elif self.placed and action in ("answer", "leave engine", "lose"):
            request, engine = self.placed.pop(list(self.placed)[choice % len(self.placed)])
            if action == "answer":
                served = ServedRequest(request, engine, request.arrived_s, self.now_s, 5)
                self.scheduling.completed(served)
            elif action == "lose":
                self.requeued = request
                self.ask(request, is_requeued=True)
            else:
                self.scheduling.cancel(request)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        for id_, (request, task) in list(self.tasks.items()):
            if task.done():
                self.placed[id_] = request, task.result().instance
                del self.tasks[id_]

    def check(self) -> None:
        scheduling = self.scheduling
        in_flight = [0] * ENGINES
        for _, engine in self.placed.values():
            in_flight[engine] += 1
        assert scheduling.in_flight == in_flight
        assert all(len(scheduling.scheduler.running(each)) <= AT_ONCE for each in range(ENGINES))
        assert len(scheduling) == len(self.tasks)


@pytest.mark.parametrize("make", [RoundRobin, LeastLoaded, KairosPacking])
@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 99)), max_size=60))
def test_bounds_and_bookkeeping_hold(
    make: Callable[[Fleet], Dispatcher], actions: list[tuple[str, int]]
) -> None:
    async def run() -> None:
        policy = Watched()
        world = World(policy, make)
        for action, choice in actions:
            before = set(world.placed)
            await world.act(action, choice)
            world.check()
            new = [world.placed[id_][0] for id_ in set(world.placed) - before]
            waiting = [request for request, _ in world.tasks.values()]
            # Its place was free before it waited again.
            before_it = [one for one in waiting if one is not world.requeued]
            if new and before_it:
                assert max(one.step for one in new) <= min(one.step for one in before_it)
            is_open = [
                is_up and n < AT_ONCE
                for is_up, n in zip(world.scheduling.is_up, world.scheduling.in_flight, strict=True)
            ]
            if make is not KairosPacking:
                assert not (waiting and any(is_open))
        for engine in range(ENGINES):
            await world.act("up", engine)
        while world.placed:
            await world.act("answer", 0)
            world.check()
        assert not world.tasks
        assert set(policy.state.values()) <= {"over"}

    asyncio.run(run())


@pytest.mark.parametrize("make", [Mlfq, Plas, lambda: Combined([StepFirst(), Plas()])])
@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 99)), max_size=60))
def test_policies_with_a_memory_are_told_all(
    make: Callable[[], Policy], actions: list[tuple[str, int]]
) -> None:
    async def run() -> None:
        world = World(make(), LeastLoaded)
        for action, choice in actions:
            await world.act(action, choice)
            world.check()
        for engine in range(ENGINES):
            await world.act("up", engine)
        while world.placed:
            await world.act("answer", 0)
        assert not world.tasks

    asyncio.run(run())


def test_ranks_that_change_by_time_alone_are_looked_at_in_time() -> None:
    class Due(Fcfs):
        passed_s = -1.0

        @property
        def due_s(self) -> float:
            return 0.3 if self.passed_s < 0.3 else 99.0

        def passed(self, now_s: float) -> None:
            self.passed_s = now_s

    async def run() -> None:
        policy = Due()
        world = World(policy, LeastLoaded)
        for engine in range(ENGINES):
            world.scheduling.set_is_up(engine, False)
        await world.act("arrive", 0)
        world.now_s = 0.5
        await until(lambda: policy.passed_s == 0.5)

    asyncio.run(run())


class Impatient(StepFirst):
    preempts = True


def test_the_last_ranked_request_of_an_engine_yields_to_one_that_ranks_before_it() -> None:
    async def run() -> None:
        world = World(Impatient(), RoundRobin)
        left: list[int] = []
        for step in (4, 3, 2, 4, 3, 2):  # two at each engine
            await world.act("arrive", step)
        for id_, (request, engine) in world.placed.items():
            world.scheduling.preemptible[id_] = Preemptible(
                request, engine, lambda id_=id_: id_ != 4, partial(left.append, id_)
            )
        await world.act("down", world.placed[3][1])  # its requests 0 and 3 are of step 4
        await world.act("arrive", 4)
        assert left == []
        await world.act("arrive", 1)  # at the engine of 2 and 5, both of step 2
        assert left == [5]
        assert world.placed[7][1] == 2
        await world.act("arrive", 0)  # at the engine of 1 and 4, both of step 3; 4 cannot leave
        assert left == [5, 1]
        for id_ in (5, 1):  # they wait where they were
            request, engine = world.placed.pop(id_)
            world.ask(request, is_requeued=True)
            await world.settle()
            assert id_ in world.tasks
            await world.act("answer", [*world.placed].index(7 if id_ == 5 else 8))
            assert world.placed[id_][1] == engine

    asyncio.run(run())


def test_a_full_queue_takes_none_but_those_put_back() -> None:
    async def run() -> None:
        scheduling = SchedulerDriver(Fcfs(), LeastLoaded(Fleet.uniform(1, 1, 1.0)), 1, 1)
        scheduling.set_is_up(0, True)
        assert (await scheduling.place(queued(0))).instance == 0
        waiting = asyncio.create_task(scheduling.place(queued(1)))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="1 requests wait already"):
            await scheduling.place(queued(2))
        assert (
            await scheduling.place(queued(0), is_requeued=True)
        ).instance == 0  # it ranks before the other
        scheduling.cancel(queued(0))
        assert (await waiting).instance == 0

    asyncio.run(run())


@pytest.mark.parametrize("make", [Fcfs, Plas])
def test_speculative_requests_do_not_fill_the_queue_for_needed_ones(
    make: Callable[[], Policy],
) -> None:
    async def run() -> None:
        scheduling = SchedulerDriver(make(), LeastLoaded(Fleet.uniform(1, 1, 1.0)), 1, 2)
        tasks = []
        for number, speculative in enumerate([True, True, False, False]):
            request = queued(number, speculative=speculative)
            tasks.append(asyncio.create_task(scheduling.place(request)))
            await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="4 requests wait already"):
            await scheduling.place(queued(4, speculative=True))
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            await scheduling.place(queued(5))
        scheduling.promote(0)
        tasks[2].cancel()
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            await scheduling.place(queued(6))
        scheduling.set_is_up(0, True)
        for number in (0, 3, 1):
            assert (await tasks[number]).request.id == number
            scheduling.cancel(queued(number))
        assert (len(scheduling), scheduling.scheduler.waiting_speculative) == (0, 0)

    asyncio.run(run())


def test_a_request_that_cannot_be_ranked_is_refused_and_forgotten() -> None:
    async def run() -> None:
        policy = Combined([Topology(), Plas()])
        scheduling = SchedulerDriver(policy, LeastLoaded(Fleet.uniform(1, 1, 1.0)), 1, 9)
        with pytest.raises(MetropolisError, match="how many stages are left"):
            await scheduling.place(queued(0))
        assert len(scheduling) == 0
        scheduling.set_is_up(0, True)
        assert (await scheduling.place(queued(0, stages_left=1))).instance == 0

    asyncio.run(run())


def test_those_who_leave_while_no_engine_answers_are_forgotten() -> None:
    async def run() -> None:
        scheduling = SchedulerDriver(Fcfs(), LeastLoaded(Fleet.uniform(1, 1, 1.0)), 1, 9)
        for number in range(3 * DISCARDED_MAX):
            task = asyncio.create_task(scheduling.place(queued(number)))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
        (queue,) = scheduling.scheduler._placement._queues.values()
        assert len(queue._heap) <= DISCARDED_MAX

    asyncio.run(run())


def test_a_program_that_has_ended_is_forgotten_by_policy_and_dispatcher() -> None:
    policy, dispatcher = (
        Plas(),
        ProgramAffinity(Fleet.uniform(2, 1 << 20, 20.0), threshold_tokens=1),
    )
    told: list[str] = []
    policy.program_ended = told.append  # type: ignore[method-assign]
    scheduling = SchedulerDriver(policy, dispatcher, 1, 1)
    dispatcher.closed = set()
    assert [dispatcher.place(queued(0), 0.0) for _ in range(2)] == [0, 0]  # affinity
    scheduling.scheduler.program_ended(queued(0).program)
    assert told == [queued(0).program]
    assert dispatcher.place(queued(0), 0.0) == 1  # the least loaded


class Undue(Fcfs):
    """Has no due time."""

    due_s = None  # type: ignore[assignment]


def test_a_due_time_that_is_no_number_fails_what_waits() -> None:
    async def run() -> None:
        scheduling = SchedulerDriver(Undue(), LeastLoaded(Fleet.uniform(1, 1, 1.0)), 1, 9)
        faults: list[PluginError] = []
        scheduling.scheduler.on_fault = faults.append
        scheduling.set_is_up(0, True)
        assert (await scheduling.place(queued(0))).instance == 0
        sentence = "^the policy Undue returned the due_s None; it should be a number$"
        with pytest.raises(PluginError, match=sentence) as told:
            await scheduling.place(queued(1))
        assert faults == [told.value]
        assert len(scheduling) == 0

    asyncio.run(run())
