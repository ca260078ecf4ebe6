"""The live gateway and the simulation give the same commands for the same events.

A workload is simulated, and every event that reaches the simulation's scheduler is recorded with
the commands that followed. The gateway's side is then driven through its own methods by the same
events at the same times. In random disturbances clients disconnect, and instances fail, return and
change their models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metropolis.sim.engines
from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.gateway.scheduler_driver import Preemptible, SchedulerDriver
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.scheduler.base import Command, Place, Preempt, Reject, Report, Reprioritize
from metropolis.scheduler.instance import RequestState
from metropolis.scheduler.scheduler import Scheduler
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.instance import Aborted, SimulatedInstance
from metropolis.sim.options import PoolOptions
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.programs import PlannedCall, Program

INSTANCES, AT_ONCE, KV_TOKENS = 3, 4, 1 << 20
ENGINE = Profile(
    w_ms=10.0, g_ms=0.05, h_ms=2.0, b_ms=0.1, kv_capacity_tokens=KV_TOKENS, max_sequences=AT_ONCE
)
"""Its memory never binds: real engines count their tokens themselves."""
EVENTS = (
    "arrived", "finished", "interrupted", "cancelled", "program_ended", "instance_preempted",
    "instance_up", "instance_down", "models_changed",
)  # fmt: skip


@dataclass
class Stream:
    """What one scheduler was told, and the commands that it gave, in order."""

    events: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """With `schedule` for every instant at which commands were carried out."""
    commands: list[tuple[float, Place | Preempt]] = field(default_factory=list)
    """With their times."""


def recorded(scheduler: Scheduler, stream: Stream) -> Scheduler:
    """Record the events and commands of `scheduler` in `stream`."""

    def tell(name: str, method: Any, *args: Any) -> Any:
        stream.events.append((name, args))
        return method(*args)

    def schedule(method: Any, now_s: float) -> list[Command]:
        stream.events.append(("schedule", (now_s,)))
        commands: list[Command] = method(now_s)
        for command in commands:
            assert not isinstance(command, Reject)
            if not isinstance(command, Report | Reprioritize):  # the gateway's engines take none
                stream.commands.append((now_s, command))
        return commands

    for name in EVENTS:
        setattr(scheduler, name, partial(tell, name, getattr(scheduler, name)))
    scheduler.schedule = partial(schedule, scheduler.schedule)  # type: ignore[method-assign]
    return scheduler


def workload(seed: int) -> list[Program]:
    """Chains and fans of calls; many more at a time than the instances hold."""
    draw, arrival_s = Random(seed), 0.0

    def programs() -> Iterator[Program]:
        nonlocal arrival_s
        for number in range(40):
            arrival_s += draw.expovariate(8.0)
            calls: list[PlannedCall] = []
            for index in range(draw.randint(1, 4)):
                lengths = draw.choice([20, 400, 3000]), draw.choice([2, 30, 200])
                parents = (draw.randrange(index),) if index else ()
                prefix = ((draw.randrange(3), 10),)
                calls.append(PlannedCall(draw.choice("fgh"), *lengths, parents, 5 - index, prefix))
            yield Program(f"program {number}", arrival_s, tuple(calls))

    return list(programs())


def plug_ins(policy: str, dispatcher: str) -> tuple[Policy, Dispatcher]:
    fleet = Fleet.uniform(INSTANCES, 60_000, 20.0)
    return named(POLICIES, policy)(), named(DISPATCHERS, dispatcher)(fleet)


def simulated(policy: str, dispatcher: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()

    def scheduler(*args: Any) -> Scheduler:
        return recorded(Scheduler(*args), stream)

    monkeypatch.setattr(metropolis.sim.engines, "Scheduler", scheduler)
    profiles = [ENGINE] * INSTANCES
    WorkloadSimulation(
        workload(seed), profiles, *plug_ins(policy, dispatcher), PoolOptions(), AT_ONCE
    ).run()
    return stream


class AbandoningInstance(SimulatedInstance):
    """Reports nothing of the requests in `abandoned`; aborts a request once, as engines do."""

    abandoned: set[int]

    def abort(self, request_id: int, now_sim_s: float) -> None:
        if request_id not in self._leaving:  # of an instance that failed and is up again at once
            super().abort(request_id, now_sim_s)

    def advance(self, now_sim_s: float) -> Iterator[ServedRequest | Aborted]:
        for one in super().advance(now_sim_s):
            if (one.id if isinstance(one, Aborted) else one.request.id) not in self.abandoned:
                yield one


class DisturbedCluster(SimulatedCluster):
    """Instances that fail, return and change their models, and clients that disconnect."""

    def __init__(self, policy: Policy, dispatcher: Dispatcher) -> None:
        options, profiles = PoolOptions(), [ENGINE] * INSTANCES
        super().__init__(profiles, policy, dispatcher, options, AT_ONCE)
        self.instances = [AbandoningInstance(n, ENGINE, options) for n in range(INSTANCES)]
        self._instances = [*self.instances]
        self.abandoned = set[int]()
        for each in self.instances:
            each.abandoned = self.abandoned
        self._arrivals = count()

    @property
    def outstanding(self) -> list[int]:
        """Ids of the requests that have neither completed nor been cancelled."""
        return [*self._requests]

    def run_until(self, until_s: float) -> None:
        """Carry out what is due by then."""
        while (due_s := self.next_event_sim_s()) <= until_s and due_s < inf:
            self.advance(due_s)
            self.dispatch(due_s)
        if until_s < inf:
            self.advance(until_s)

    def disturb(self, action: str, choice: int, now_s: float) -> None:
        instance = choice % INSTANCES
        match action:
            case "arrive":
                self._arrive(choice, now_s)
            case "cancel" if self.outstanding:
                id_ = self.outstanding[choice % len(self.outstanding)]
                del self._requests[id_]
                self.abandoned.add(id_)
                self._scheduler.cancelled(id_, now_s)
                for each in range(INSTANCES):
                    self._abort(each, id_, now_s)
            case "up":
                self._scheduler.instance_up(instance, now_s)
            case "down":
                self._scheduler.instance_down(instance, now_s)
                for id_ in self._scheduler.running(instance):
                    self._abort(instance, id_, now_s)
            case "models":
                models = MODELS[choice // INSTANCES % len(MODELS)]
                self._scheduler.models_changed(instance, models, now_s)

    def _abort(self, instance: int, id_: int, now_s: float) -> None:
        with suppress(ValueError):  # the instance does not have it, or it is aborted already
            self.instances[instance].abort(id_, now_s)

    def _arrive(self, choice: int, now_s: float) -> None:
        draw, number = Random(choice), next(self._arrivals)
        model = draw.choice([None, "a", "b"])
        if not self._scheduler.models.serving(model):
            model = None
        program = number // 3
        request = QueuedRequest(
            number,
            f"program {program}",
            draw.choice("fgh"),
            draw.choice([20, 400, 3000]),
            now_s,
            float(program),
            upstream=draw.choice([None, "f"]),
            step=draw.randrange(5),
            stages_left=draw.randrange(1, 4),
            prefix=((draw.randrange(3), 10),),
            model=model,
        )
        self.send(request, draw.choice([2, 30, 200]))


MODELS = (None, frozenset("a"), frozenset("b"), frozenset("ab"))
ACTIONS = ["arrive"] * 6 + ["cancel", "up", "up", "down", "models"]
Plan = list[tuple[float, str, int]]
"""Gaps in seconds, actions and what they choose."""
PLANS: st.SearchStrategy[Plan] = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.3, 2.0]), st.sampled_from(ACTIONS), st.integers(0, 999)
    ),
    min_size=10,
    max_size=60,
)
LISTED: Plan = [(0.0, "models", 3 * INSTANCES), (0.0, "models", 0)]
"""An instance has listed both models, which may return: requests for them wait."""
RECOVERY: Plan = [
    (0.5, action, instance) for action in ("models", "up") for instance in range(INSTANCES)
]
"""All instances serve all models again."""


def disturbed(policy: str, dispatcher: str, plan: Plan) -> Stream:
    stream = Stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metropolis.sim.engines, "Scheduler", lambda *args: recorded(Scheduler(*args), stream)
        )
        cluster = DisturbedCluster(*plug_ins(policy, dispatcher))
    now_s = 0.0
    for gap_s, action, choice in [*LISTED, *plan, *RECOVERY]:
        now_s += gap_s
        cluster.run_until(now_s)
        cluster.disturb(action, choice, now_s)
        cluster.dispatch(now_s)
    cluster.run_until(inf)
    assert not cluster.outstanding
    return stream


class Driven(SchedulerDriver):
    """Carries commands out at the instants of the stream only."""

    def carry_out(self) -> None:
        """Wait for `carry_out_now`."""

    def carry_out_now(self) -> None:
        super().carry_out()


class PlacesAnew(Driven):
    """A planted difference: the dispatcher places preempted requests anew, on any instance."""

    async def place(
        self, request: QueuedRequest, *, is_requeued: bool = False, only: int | None = None
    ) -> Place:
        if is_requeued and self.scheduler._requests[request.id].state is RequestState.PREEMPTING:
            tracked = self.scheduler._requests[request.id]
            here = self.scheduler._instances[tracked.instance]
            here.start(here.preempting.pop(request.id), 0)
        return await super().place(request, is_requeued=is_requeued, only=only)


async def live(policy: str, dispatcher: str, stream: Stream, kind: type[Driven]) -> Stream:
    """Drive the gateway's side by the events of `stream`; its own events and commands."""
    now_s, found, placed = 0.0, Stream(), dict[int, asyncio.Task[Place]]()
    scheduling = kind(*plug_ins(policy, dispatcher), AT_ONCE, 1 << 20, lambda: now_s)
    recorded(scheduling.scheduler, found)

    async def place(request: QueuedRequest, *, is_requeued: bool) -> Place:
        place = await scheduling.place(request, is_requeued=is_requeued)
        scheduling.preemptible[request.id] = Preemptible(
            request, place.instance, lambda: True, lambda: None
        )
        return place

    async def wait(request: QueuedRequest, *, is_requeued: bool) -> None:
        placed[request.id] = asyncio.create_task(place(request, is_requeued=is_requeued))
        await asyncio.sleep(0)

    requests: dict[int, QueuedRequest] = {}
    for name, args in stream.events:
        match name, args:
            case "arrived", (request,):
                requests[request.id] = request
                await wait(request, is_requeued=False)
            case "finished", (served,):
                task = placed.pop(served.request.id)
                if not task.done() or task.result().instance != served.instance:
                    return found  # its command differs
                scheduling.completed(served)
            case "interrupted", (id_, _, now_s):
                if not placed[id_].done():
                    return found
                await wait(requests[id_], is_requeued=True)
            case "cancelled", (id_, now_s):
                if placed[id_].done():
                    scheduling.cancel(requests[id_])
                else:
                    placed[id_].cancel()
                    await asyncio.sleep(0)
            case "instance_up", (instance, now_s):
                scheduling.set_is_up(instance, True)
            case "instance_down", (instance, now_s):
                scheduling.set_is_up(instance, False)
            case "models_changed", (instance, models, now_s):
                scheduling.scheduler.models_changed(instance, models, now_s)
            case "program_ended", (program,):
                scheduling.scheduler.program_ended(program)
            case "instance_preempted", (instance, now_s):
                scheduling.engine_preempted(instance)
            case "schedule", (now_s,):
                scheduling.carry_out_now()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
    return found


class KeepsBacklog(Driven):
    """A planted difference: an instance that returns gets no request that waits at others."""

    def set_is_up(self, instance: int, is_up: bool) -> None:
        if is_up:
            self.scheduler._instances[instance].is_up = True
            self.scheduler._refresh(instance)
        else:
            super().set_is_up(instance, is_up)


class LeavesCancelled(Driven):
    """A planted difference: a running request that is cancelled keeps its place."""

    def cancel(self, request: QueuedRequest) -> None:
        if request.id not in self.preemptible:
            super().cancel(request)


class IgnoresModels(Driven):
    """A planted difference: the gateway learns no models."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.scheduler.models.set = lambda *_: None  # type: ignore[method-assign]


def differs(policy: str, dispatcher: str, seed: int, kind: type[Driven], patch: Any) -> bool:
    """Whether the gateway's commands differ from the simulation's."""
    stream = simulated(policy, dispatcher, seed, patch)
    assert sum(isinstance(one, Place) for _, one in stream.commands) >= 40
    if named(POLICIES, policy)().preempts:
        assert any(isinstance(one, Preempt) for _, one in stream.commands)
    return asyncio.run(live(policy, dispatcher, stream, kind)).commands != stream.commands


@pytest.mark.parametrize("dispatcher", names_of(DISPATCHERS))
@pytest.mark.parametrize("policy", [*names_of(POLICIES), "step+kairos", "step+atlas"])
def test_the_gateway_gives_the_commands_of_the_simulation(
    policy: str, dispatcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        assert not differs(policy, dispatcher, seed, Driven, monkeypatch)


def test_a_planted_difference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differs("plas", "least_used", 0, PlacesAnew, monkeypatch)


@pytest.mark.parametrize("dispatcher", names_of(DISPATCHERS))
@pytest.mark.parametrize("policy", [*names_of(POLICIES), "step+kairos", "step+atlas"])
@settings(max_examples=8)
@given(PLANS)
def test_the_commands_are_equal_when_clients_leave_and_instances_fail(
    policy: str, dispatcher: str, plan: Plan
) -> None:
    stream = disturbed(policy, dispatcher, plan)
    assert asyncio.run(live(policy, dispatcher, stream, Driven)).commands == stream.commands


def eventful_plan() -> Plan:
    """A fixed plan with every kind of disturbance, under load."""
    draw = Random(1)
    return [(0.05, draw.choice(ACTIONS), draw.randrange(999)) for _ in range(200)]


@pytest.mark.parametrize("kind", [KeepsBacklog, LeavesCancelled, IgnoresModels])
def test_a_planted_difference_in_disturbances_is_noticed(kind: type[Driven]) -> None:
    stream = disturbed("plas", "least_used", eventful_plan())
    assert {name for name, _ in stream.events} >= {
        "interrupted", "cancelled", "instance_up", "instance_down", "models_changed",
    }  # fmt: skip
    assert asyncio.run(live("plas", "least_used", stream, Driven)).commands == stream.commands
    assert asyncio.run(live("plas", "least_used", stream, kind)).commands != stream.commands
