"""The timeline of a live run says what its history, its calls and its controller say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.controller.native import NativeController
from metropolis.llm.base import Completion, Request
from metropolis.runtime.live.configuration import LIVE_MODES
from metropolis.sim.virtual import VirtualInstances
from metropolis.timeline.columns import NONE
from metropolis.timeline.reader import read_timeline
from tests.timeline.recorded_runs import STEPS, check, simulation


@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 20), mode=st.sampled_from(LIVE_MODES), agents=st.integers(1, 9))
def test_a_run_in_memory(
    tmp_path_factory: pytest.TempPathFactory, seed: int, mode: str, agents: int
) -> None:
    folder = tmp_path_factory.mktemp("run") / "out"
    result = simulation(folder, seed=seed, mode=mode, agents=agents).run(STEPS)
    found = check(folder, result)
    rows, calls = found.executions, found.calls
    assert found.makespan_s == result.makespan_s
    assert found.meta.clock == "simulated"
    dispatched, committed = found.dense("dispatched_s"), found.dense("committed_s")
    if mode == "optimistic":
        assert (committed[1:] >= committed[:-1]).all()
        served = ~np.isnan(calls.started_s)  # others were answered before, for a wrong execution
    else:
        assert (dispatched[1:] >= committed[:-1]).all()
        assert (calls.sent_s >= dispatched[calls.step, calls.agent]).all()
        assert not rows.wasted.any()
        assert not calls.wasted.any()
        served = np.ones(len(calls), np.bool_)
    assert (calls.completed_s <= committed[calls.step, calls.agent])[~calls.wasted].all()
    assert (calls.sent_s <= calls.started_s)[served].all()
    assert (calls.started_s < calls.completed_s)[served].all()
    assert np.isin(calls.instance[served], (0, 1)).all()
    assert (calls.instance[~served] == NONE).all()


@pytest.mark.parametrize("mode", LIVE_MODES)
def test_floor_and_leads_are_those_of_the_controller(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulation(tmp_path, seed=4, mode=mode, agents=7)
    seen: dict[float, tuple[int, list[int]]] = {}
    at = [0] * 7
    handle = NativeController.handle

    def watched(self: NativeController, commits: Any) -> Any:
        ready = handle(self, commits)
        for commit in commits:
            for agent in commit.agents:
                at[agent] += 1
        seen[run._clock.now_s()] = self.floor, [*at]
        return ready

    monkeypatch.setattr(NativeController, "handle", watched)
    run.run(STEPS)
    found = read_timeline(tmp_path)
    assert len(seen) > 3
    for now_s, (floor, steps) in seen.items():
        assert found.steps_at(now_s).tolist() == steps
        assert found.steps_at(now_s).min() == floor


@pytest.mark.parametrize(
    ("mode", "workers"), [("out_of_order", 1), ("out_of_order", 3), ("optimistic", 1)]
)
def test_a_run_in_a_store(tmp_path: Path, mode: str, workers: int) -> None:
    how = {"mode": mode, "store": "embedded", "workers": workers, "simulated": False}
    run = simulation(tmp_path, side=25, **how)  # so large that workers continue agents alone
    found = check(tmp_path, run.run(STEPS))
    assert found.meta.clock == "real"
    assert (found.calls.instance == NONE).all()
    assert np.isnan(found.calls.started_s).all()


def test_agents_that_run_ahead_begin_early_and_waste_some_executions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    complete = VirtualInstances.complete

    async def counted(self: VirtualInstances, request: Request) -> Completion:
        sent.append(request)
        return await complete(self, request)

    monkeypatch.setattr(VirtualInstances, "complete", counted)
    run = simulation(tmp_path, seed=1, mode="optimistic", agents=9)
    result = run.run(STEPS)
    found = check(tmp_path, result)
    assert len(found.calls) == len(sent)
    assert found.calls.wasted.sum() == len(sent) - result.calls
    bought = result.bought
    tokens = found.calls.prompt_tokens.sum() + found.calls.output_tokens.sum()
    assert tokens == bought.prompt_tokens + bought.output_tokens
    dispatched, committed = found.dense("dispatched_s"), found.dense("committed_s")
    ahead = dispatched[1:] < committed[:-1]
    assert ahead.any()
    assert (found.dense("blocked_by")[1:][ahead] == NONE).all()
    wasted = found.executions.wasted.sum()
    assert wasted > 0
    rows = set(zip(found.calls.step.tolist(), found.calls.agent.tolist(), strict=True))
    assert found.calls.wasted.any()
    assert len(rows) <= found.meta.agents * found.steps
    assert (found.calls.number[found.calls.wasted] < 0).all()


@pytest.mark.parametrize("mode", LIVE_MODES)
def test_the_history_does_not_depend_on_it(tmp_path: Path, mode: str) -> None:
    results = [
        simulation(tmp_path / f"{timeline}", mode=mode, timeline=timeline).run(STEPS)
        for timeline in (True, False)
    ]
    assert results[0].history_sha256 == results[1].history_sha256
    assert results[0].makespan_s == results[1].makespan_s
    assert not (tmp_path / "False" / "timeline").exists()


def test_a_run_without_a_folder_records_nothing() -> None:
    run = simulation(None)
    run.run(STEPS)
    assert run._recording._timeline is None


def test_a_run_in_progress_shows_who_waits_for_whom(tmp_path: Path) -> None:
    """As the controller sees it at the same time, for agents that have committed a step."""
    run = simulation(tmp_path, agents=9, side=20)
    waits: set[tuple[int, int, int]] = set()
    steps = run.steps(STEPS)
    for _ in steps:
        writer = run._recording._timeline
        assert writer is not None
        writer.flush()
        executions = read_timeline(tmp_path).executions
        waiting = np.isnan(executions.dispatched_s)
        assert np.isnan(executions.committed_s[waiting]).all()
        edges = run.inspect().blocked_by
        columns = executions.step, executions.agent, executions.blocked_by
        for step, agent, blocker in zip(*(of[waiting].tolist() for of in columns), strict=True):
            assert edges[agent] == blocker
            waits.add((step, agent, blocker))
    assert len(waits) > 3
    found = read_timeline(tmp_path)
    assert not np.isnan(found.executions.dispatched_s).any()
    assert len(found.begun().executions) == len(found.executions)
