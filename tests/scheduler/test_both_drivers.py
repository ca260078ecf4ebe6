"""The live gateway and the simulation give the same commands for the same events.

A workload is simulated, and every event that reaches the simulation's scheduler is recorded with
the commands that followed. The gateway's side is then driven through its own methods by the same
events at the same times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest

import metropolis.sim.engines
from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.gateway.scheduler_driver import Preemptible, SchedulerDriver
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.scheduler.base import Command, Place, Preempt, Reject, Report
from metropolis.scheduler.instance import State
from metropolis.scheduler.scheduler import Scheduler
from metropolis.sim.options import PoolOptions
from metropolis.sim.workload_simulation import Serving
from metropolis.trace.programs import PlannedCall, Program

INSTANCES, AT_ONCE, KV_TOKENS = 3, 4, 1 << 20
ENGINE = Profile(
    w_ms=10.0, g_ms=0.05, h_ms=2.0, b_ms=0.1, kv_capacity_tokens=KV_TOKENS, max_sequences=AT_ONCE
)
"""Its memory never binds: real engines count their tokens themselves."""
EVENTS = ("arrived", "finished", "left", "program_ended", "instance_preempted")


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
            if not isinstance(command, Report):
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
    Serving(workload(seed), profiles, *plug_ins(policy, dispatcher), PoolOptions(), AT_ONCE).run()
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
        if is_requeued and self.scheduler._requests[request.id].state is State.LEAVING:
            tracked = self.scheduler._requests[request.id]
            here = self.scheduler._instances[tracked.instance]
            here.start(here.leaving.pop(request.id))
        return await super().place(request, is_requeued=is_requeued, only=only)


async def live(policy: str, dispatcher: str, stream: Stream, kind: type[Driven]) -> Stream:
    """Drive the gateway's side by the events of `stream`; its own events and commands."""
    now_s, found, placed = 0.0, Stream(), dict[int, asyncio.Task[Place]]()
    scheduling = kind(*plug_ins(policy, dispatcher), AT_ONCE, 1 << 20, lambda: now_s)
    recorded(scheduling.scheduler, found)
    for instance in range(INSTANCES):
        scheduling.open(instance, True)

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
                if (await placed.pop(served.request.id)).instance != served.instance:
                    return found  # its command differs
                scheduling.completed(served)
            case "left", (id_, _, now_s):
                await placed[id_]
                await wait(requests[id_], is_requeued=True)
            case "program_ended", (program,):
                scheduling.program_ended(program)
            case "instance_preempted", (instance, now_s):
                scheduling.preempted(instance)
            case "schedule", (now_s,):
                scheduling.carry_out_now()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
    return found


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
