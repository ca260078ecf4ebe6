"""The timeline of a live run says what its history and its controller say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.folder.calls_file import calls_by_step
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.configuration import LIVE_MODES
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.timeline.reader import Timeline, read_timeline
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 8


def run(
    out: Path | None,
    mode: str,
    seed: int = 0,
    *,
    simulated: bool = True,
    agents: int = 5,
    **fields: object,
) -> RunResult:
    world = Meadow(agents, side=10, joint=1)
    backend: Scripted | VirtualInstances = Scripted(author)
    if simulated:
        backend = VirtualInstances(backend, SimulatedFleet.uniform("llama-3-8b/l4", 2))
    walkers = [Walker(name) for name in world.names]
    simulation = Simulation(
        world, walkers, backend, out=out, mode=mode, seed=seed, waste_budget=1.0, **fields
    )
    return simulation.run(STEPS)


def check(folder: Path, result: RunResult) -> Timeline:
    found = read_timeline(folder)
    rows, calls = found.executions, found.calls
    assert len(rows) == result.agents * result.steps
    assert (rows.committed_s >= rows.dispatched_s).all()
    assert (rows.committed_wall_s >= rows.dispatched_wall_s).all()
    dispatched, committed = found.dense("dispatched_s"), found.dense("committed_s")
    assert (dispatched[1:] >= committed[:-1]).all() or result.mode == "optimistic"
    blockers = rows.blocked_by >= 0
    waiter = rows.step[blockers], rows.agent[blockers]
    blocker = rows.blocked_by[blockers]
    assert (blocker != waiter[1]).all()
    began_to_wait = committed[waiter[0] - 1, waiter[1]]
    assert (committed[waiter[0], blocker] >= began_to_wait).all(), "it was already past that step"
    kept = [call for _, of in calls_by_step(RunDirectory(folder).calls) for call in of]
    listed = [
        (step, agent, call.function, call.model, call.sent, call.completed)
        for step, agent, call in kept
    ]
    assert listed == [
        (step, agent, calls.functions[function], calls.models[model], sent, completed)
        for step, agent, function, model, sent, completed in zip(
            calls.step.tolist(),
            calls.agent.tolist(),
            calls.function.tolist(),
            calls.model.tolist(),
            calls.sent_s.tolist(),
            calls.completed_s.tolist(),
            strict=True,
        )
    ]
    return found


@settings(max_examples=6)
@given(seed=st.integers(0, 1 << 20), mode=st.sampled_from(LIVE_MODES))
def test_a_run_in_memory(tmp_path_factory: pytest.TempPathFactory, seed: int, mode: str) -> None:
    folder = tmp_path_factory.mktemp("run") / "out"
    result = run(folder, mode, seed)
    found = check(folder, result)
    assert found.makespan_s == result.makespan_s
    assert found.meta.clock == "simulated"
