"""Killed, resumed and branched runs: what was written stays readable, and later rows replace it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns

import numpy as np
import pytest

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.fork import fork
from metropolis.timeline import writer
from metropolis.timeline.format import CALLS, EXECUTIONS, file_of
from metropolis.timeline.reader import TimelineFollower, read_timeline
from tests.runtime import killable
from tests.runtime.purchases import leave
from tests.timeline.recorded_runs import calls_in, calls_kept, check, check_blockers, simulation

STEPS = 30
AGENTS = 6


def kill_in_mid_run(out: Path, store: str) -> None:
    """Kill a run once its timeline has rows of several steps."""
    command = [sys.executable, "-m", "tests.runtime.killable", f"{out}", store, f"{STEPS}"]
    (out.parent / "slow").write_text("")
    follower = TimelineFollower(out / "timeline")
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s and process.poll() is None:
            new = follower.poll()
            if new is not None and new.executions.step.max(initial=0) > 4:
                break
            time.sleep(0.05)
        time.sleep(0.3)  # some commits are not written yet
        process.kill()
    (out.parent / "slow").unlink()
    assert process.returncode == -9


@pytest.mark.parametrize("store", ["memory", "embedded"])
def test_a_killed_run_leaves_a_timeline_and_continues_it(tmp_path: Path, store: str) -> None:
    out = tmp_path / "it"
    kill_in_mid_run(out, store)
    left = read_timeline(out)
    committed = ~np.isnan(left.dense("committed_s"))
    reached = committed.sum(0)
    for agent in range(AGENTS):
        assert committed[: reached[agent], agent].all()
    assert reached.min() > 1
    recorded = sum(1 for _ in RunDirectory(out).records(STEPS))
    assert reached.min() <= recorded + 1
    check_blockers(left.begun())
    kept = [call for call in calls_kept(out) if call[0] < reached.min()]
    assert [call for call in calls_in(left) if call[0] < min(recorded, reached.min())] == [
        call for call in kept if call[0] < recorded
    ]
    result = killable.simulation(out, None if store == "embedded" else store).run(STEPS)
    if store == "memory":
        check(out, result)
        return
    found = read_timeline(out)
    assert found.meta.number == 1
    missing = np.isnan(found.dense("committed_s"))
    for step, agent in zip(*missing.nonzero(), strict=True):  # of the moment before the kill
        assert reached[agent] <= step < recorded
    assert set(calls_in(found)) <= set(calls_kept(out))


def test_a_run_that_continues_from_a_checkpoint_replaces_what_came_after_it(tmp_path: Path) -> None:
    whole = simulation(tmp_path / "whole").run(12)
    first = simulation(tmp_path / "it", checkpoint_wall_s=0)
    leave(first, 20, 7)
    begun = read_timeline(tmp_path / "it")
    result = simulation(tmp_path / "it", resume=True).run(12)
    assert result.history_sha256 == whole.history_sha256
    found = check(tmp_path / "it", result)
    assert found.meta.number == 1
    first_step = found.meta.first_step
    assert first_step is not None
    assert 0 < first_step <= 8
    before, after = (
        each.executions.committed_s[each.executions.step < first_step] for each in (begun, found)
    )
    assert before.tolist() == after.tolist()
    code = "from metropolis.timeline.reader import read_timeline; print(read_timeline('it').steps)"
    alone = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert alone.stdout == "12\n", alone.stderr  # it imports what it needs


def test_a_run_that_is_left_has_written_every_commit(tmp_path: Path) -> None:
    leave(simulation(tmp_path), 20, 7)
    assert not np.isnan(read_timeline(tmp_path).dense("committed_s")[:8]).any()


def test_a_checkpoint_comes_with_all_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INTERVAL_S", 1e9)
    monkeypatch.setattr(writer, "INTERVAL_MAX_S", 1e9)
    run = simulation(tmp_path / "it", checkpoint_wall_s=0)
    steps = run.steps(10)
    for record in steps:
        if record.step == 6:
            copytree(tmp_path / "it", tmp_path / "killed", ignore=ignore_patterns("*.partial"))
            break
    steps.close()
    result = simulation(tmp_path / "killed", resume=True).run(10)
    assert 0 < (check(tmp_path / "killed", result).meta.first_step or 0) <= 7


def test_commits_that_a_killed_process_did_not_record_are_restored_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"side": 25, "agents": 7, "simulated": False}
    with monkeypatch.context() as patch:  # nothing is written, as if it were killed
        patch.setattr(writer, "INTERVAL_S", 1e9)
        patch.setattr(writer, "INTERVAL_MAX_S", 1e9)
        patch.setattr(writer.TimelineWriter, "close", lambda _: None)
        steps = simulation(tmp_path, store="embedded", **how).steps(20)
        next(steps)
        steps.close()
    assert len(read_timeline(tmp_path).executions) == 0
    recorded = sum(1 for _ in RunDirectory(tmp_path).records(20))
    result = simulation(tmp_path, resume=True, **how).run(20)
    found = read_timeline(tmp_path)
    assert np.isfinite(found.dense("committed_s")[recorded:]).all()
    restored = np.isnan(found.executions.committed_wall_s)
    assert restored.any()
    assert (found.executions.committed_s >= found.executions.dispatched_s).all()
    calls = [call for call in calls_kept(tmp_path) if call[0] >= recorded]
    assert [call for call in calls_in(found) if call[0] >= recorded] == calls
    assert result.steps == 20


def test_a_run_in_a_store_continues_with_a_damaged_timeline(tmp_path: Path) -> None:
    """The file of another kind stands for one with damaged metadata."""
    whole = simulation(None, simulated=False).run(12)
    steps = simulation(tmp_path, store="embedded", simulated=False).steps(12)
    next(steps)
    steps.close()
    copyfile(
        file_of(tmp_path / "timeline", CALLS, 0), file_of(tmp_path / "timeline", EXECUTIONS, 0)
    )
    result = simulation(tmp_path, resume=True, simulated=False).run(12)
    assert result.history_sha256 == whole.history_sha256


def test_a_branch_begins_with_the_timeline_of_its_origin(tmp_path: Path) -> None:
    simulation(tmp_path / "it").run(12)
    parts = simulation(None)
    fork(tmp_path / "it", parts.world, parts.agents, at=7, out=tmp_path / "branch", seed=9)
    copied = read_timeline(tmp_path / "branch")
    assert copied.steps == 7
    assert copied.makespan_s == read_timeline(tmp_path / "it").before(7, copied.meta).makespan_s
    result = simulation(tmp_path / "branch", resume=True).run(12)
    found = check(tmp_path / "branch", result)
    assert (found.meta.number, found.meta.first_step) == (1, 7)
    assert found.meta.run == RunDirectory(tmp_path / "branch").read()["run"]
