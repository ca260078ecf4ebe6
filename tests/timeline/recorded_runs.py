"""Runs that record, and the check of their timelines against their other files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.folder.calls_file import calls_by_step
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.timeline.columns import Timeline
from metropolis.timeline.reader import read_timeline
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 8
Row = tuple[Any, ...]
SENT, COMPLETED = 4, 5
"""Columns of a row of calls."""


def simulation(
    out: Path | None,
    *,
    seed: int = 0,
    agents: int = 5,
    side: int = 10,
    simulated: bool = True,
    **fields: Any,
) -> Simulation:
    """Walkers on two simulated instances, or without latency."""
    world = Meadow(agents, side=side, joint=1)
    backend: Scripted | VirtualInstances = Scripted(author)
    if simulated:
        backend = VirtualInstances(backend, SimulatedFleet.uniform("llama-3-8b/l4", 2))
    walkers = [Walker(name) for name in world.names]
    fields = {"seed": seed, "waste_budget": 1.0, **fields}
    return Simulation(world, walkers, Client(backend), out=out, **fields)


def calls_in(timeline: Timeline) -> list[Row]:
    """The calls that were not wasted, as `calls_kept` gives them."""
    calls = timeline.calls
    columns = (
        calls.step.tolist(),
        calls.agent.tolist(),
        [calls.functions[index] for index in calls.function.tolist()],
        [calls.models[index] for index in calls.model.tolist()],
        calls.sent_s.tolist(),
        calls.completed_s.tolist(),
        calls.prompt_tokens.tolist(),
        calls.output_tokens.tolist(),
        calls.failed.tolist(),
    )
    rows = [
        row
        for row, wasted in zip(zip(*columns, strict=True), calls.wasted.tolist(), strict=True)
        if not wasted
    ]
    own = calls.number[~calls.wasted].tolist()
    numbers = [0] * len(own)
    for i, (before, row) in enumerate(pairwise(rows), 1):
        numbers[i] = numbers[i - 1] + 1 if row[:2] == before[:2] else 0
    assert own == numbers
    return rows


def calls_kept(folder: Path) -> list[Row]:
    """The calls of calls.jsonl."""
    return [
        (
            step,
            agent,
            call.function,
            call.model,
            call.sent,
            call.completed,
            call.prompt_tokens,
            call.output_tokens,
            call.failed,
        )
        for _, of in calls_by_step(RunDirectory(folder).calls)
        for step, agent, call in of
    ]


def check(folder: Path, result: RunResult) -> Timeline:
    """Check the timeline of a whole run."""
    found = read_timeline(folder)
    rows = found.executions
    expected = [divmod(row, result.agents) for row in range(result.steps * result.agents)]
    assert [*zip(rows.step.tolist(), rows.agent.tolist(), strict=True)] == expected
    assert (rows.committed_s >= rows.dispatched_s).all()
    assert not (rows.committed_wall_s < rows.dispatched_wall_s).any()
    check_blockers(found)
    for call, kept in zip(calls_in(found), calls_kept(folder), strict=True):
        assert call[:SENT] + call[COMPLETED + 1 :] == kept[:SENT] + kept[COMPLETED + 1 :]
        if result.mode == "optimistic":  # an answer may come from an earlier, wrong execution
            is_earlier = call[COMPLETED] is not None and call[COMPLETED] <= kept[SENT]
            assert is_earlier or call == kept
        else:
            assert call == kept
    return found


def check_blockers(found: Timeline) -> None:
    """Whom an agent waited for was at no later step, and neither was in its cluster before."""
    rows, committed = found.executions, found.dense("committed_s")
    blocked = rows.blocked_by >= 0
    step, agent, other = rows.step[blocked], rows.agent[blocked], rows.blocked_by[blocked]
    assert (step > 0).all()
    assert (agent != other).all()
    began_to_wait_s = committed[step - 1, agent]
    assert (rows.dispatched_s[blocked] > began_to_wait_s).all()
    assert not (committed[step, other] < began_to_wait_s).any(), "it was already past that step"
