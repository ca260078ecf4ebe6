"""A trace of a run in wall time records the same parents as one in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm import LLM, Client, Completion, Request
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.call_log import CallLog, in_strand
from metropolis.llm.followed_tasks import follow_tasks
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.workers.event_loop import idles
from tests.llm.fakes import Fake
from tests.llm.virtual_loop import run_virtually
from tests.runtime.talkers import WAYS, PlainTalker, Square, Talker, author

Name = tuple[int, int, str | None]
"""A call: its step, agent and prompt, which is unique within a step."""
TRACED = tuple(way for way in WAYS if way != "leaves")
"""An abandoned stream in wall time is in the trace only if it ended first."""


class AtOnce(Scripted):
    """Streams an answer in one piece, as VirtualInstances do."""

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        completion = await self.complete(request)
        yield completion.text
        yield completion


class InBatches(AtOnce):
    """Answers at the end of an iteration of a few ms, several calls at a time."""

    ITERATION_S = 0.004

    async def complete(self, request: Request) -> Completion:
        completion = await super().complete(request)
        loop = asyncio.get_running_loop()
        iterations = loop.time() // self.ITERATION_S + 1 + completion.output_tokens // 16
        answered = loop.create_future()
        loop.call_at(iterations * self.ITERATION_S, answered.set_result, None)
        await answered
        return completion


def run(
    backend: Any,
    agents: type[Talker | PlainTalker],
    mode: str,
    ways: Sequence[str] = TRACED,
    **options: Any,
) -> RunResult:
    world = Square(6, 5, 3)
    people = [agents(name, 3) for name in world.names]
    for agent in people:
        if isinstance(agent, Talker):
            agent.ways = ways
    return Simulation(world, people, backend, mode=mode, keep_text=True, **options).run(8)


def parents(result: RunResult) -> dict[Name, set[Name]]:
    calls = result.trace.calls
    names = [(int(calls.step[i]), int(calls.agent[i]), calls.prompt[i]) for i in range(len(calls))]
    assert len(set(names)) == len(names)
    ends = calls.parent_offsets
    return {
        name: {names[parent] for parent in calls.parents[ends[i] : ends[i + 1]]}
        for i, name in enumerate(names)
    }


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order"])
@pytest.mark.parametrize("agents", [Talker, PlainTalker])
@pytest.mark.parametrize("backend", [AtOnce, InBatches])
def test_parents_are_those_of_virtual_time(
    backend: type[AtOnce], agents: type[Talker | PlainTalker], mode: str
) -> None:
    virtual = run(
        VirtualInstances(AtOnce(author), SimulatedFleet.uniform("llama-3-8b/l4", 1)), agents, mode
    )
    in_wall_time = run(backend(author), agents, mode)
    assert in_wall_time.history_sha256 == virtual.history_sha256
    assert virtual.calls > 50
    assert parents(in_wall_time) == parents(virtual)


def test_a_call_that_stood_at_a_lock_waits_for_the_one_before() -> None:
    async def ask() -> list[tuple[tuple[int, int], ...]]:
        log = CallLog(time.monotonic, idles(asyncio.get_running_loop()))
        llm = LLM(Client(Fake(latency_s=lambda _: 1.0)), agent=0, step=0, seed=1, log=log)
        lock = asyncio.Lock()

        async def locked() -> None:
            async with lock:
                await llm.complete("a")

        follow_tasks(asyncio.get_running_loop())
        with in_strand(log.strand()):
            await asyncio.gather(locked(), locked(), locked())
        return [call.parents for call in llm.calls]

    assert run_virtually(ask()) == [(), ((0, 0),), ((0, 1),)]


class BeginsTasks(Fake):
    """Answers after 2 s, and starts a task half-way, as HTTP clients do."""

    async def complete(self, request: Request) -> Completion:
        if request.text == "short":
            return await super().complete(request)
        await asyncio.sleep(1.5)
        await asyncio.create_task(asyncio.sleep(0.5))
        return await super().complete(request)


def test_tasks_that_a_backend_begins_are_not_the_agents() -> None:
    async def ask() -> list[tuple[tuple[int, int], ...]]:
        log = CallLog(time.monotonic, idles(asyncio.get_running_loop()))
        llm = LLM(Client(BeginsTasks(latency_s=lambda _: 1.0)), agent=0, step=0, seed=1, log=log)

        async def twice() -> None:
            await llm.complete("long")
            await llm.complete("short")

        follow_tasks(asyncio.get_running_loop())
        with in_strand(log.strand()):
            await asyncio.gather(twice(), llm.complete("short"))
        return [call.parents for call in llm.calls]

    assert run_virtually(ask()) == [(), (), ((0, 0),)]


def test_parents_in_a_store_are_those_of_virtual_time(tmp_path: Path) -> None:
    fleet = SimulatedFleet.uniform("llama-3-8b/l4")
    virtual = run(VirtualInstances(AtOnce(author), fleet), Talker, "lockstep")
    at = {"out": tmp_path / "run", "store": "embedded"}
    stored = run(InBatches(author), Talker, "lockstep", **at)
    assert parents(stored) == parents(virtual)
