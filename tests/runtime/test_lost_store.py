"""A run whose store is lost resumes from its last checkpoint, in any store."""

from __future__ import annotations

import gc
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import metropolis
from metropolis.runtime.folder.checkpoint import Checkpoints
from metropolis.runtime.live.result import RunResult
from metropolis.store.base import StoreError
from metropolis.store.embedded import EmbeddedServer
from metropolis.types import MetropolisError
from tests.runtime.purchases import Counting, leave, same
from tests.runtime.test_stored import STEPS, simulation


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Checkpoints]:
    """The run in memory and lockstep, with all its checkpoints."""
    out = tmp_path_factory.mktemp("lived") / "it"
    run = simulation(Counting(), out=out, mode="lockstep", checkpoint_wall_s=0)
    return run.run(STEPS), Checkpoints(out / "checkpoints")


def left_at(step: int, backend: Counting, out: Path, store: str) -> None:
    """Start a run in `store` and stop it after `step`."""
    run = simulation(backend, out=out, store=store, workers=2, checkpoint_wall_s=0)
    leave(run, STEPS, step)


@pytest.mark.parametrize("where", [{}, {"store": "embedded"}, {"store": "memory"}])
def test_its_folder_is_deleted(
    tmp_path: Path,
    lived: tuple[RunResult, Checkpoints],
    where: dict[str, Any],
) -> None:
    out, backend = tmp_path / "it", Counting()
    left_at(STEPS // 2, backend, out, "embedded")
    shutil.rmtree(out / "store")
    run = simulation(backend, out=out, resume=True, **where)
    assert run.first_step > 0
    same(run.run(STEPS), lived[0])
    assert (out / "store").exists() == (where.get("store") != "memory")
    assert max(backend.bought.values()) == 1  # the journal holds later answers


def test_its_server_is_wiped_or_changed(
    tmp_path: Path, shared: EmbeddedServer, lived: tuple[RunResult, Checkpoints]
) -> None:
    out, backend = tmp_path / "it", Counting()
    left_at(STEPS // 3, backend, out, shared.url)
    shared.remove(json.loads((out / "store.json").read_text())["run"])
    for later, where in ((STEPS // 2, {}), (STEPS, {"store": "embedded"})):
        run = simulation(backend, out=out, resume=True, checkpoint_wall_s=0, **where)
        assert run.first_step > 0
        leave(run, STEPS, later)
    same(run.result(), lived[0])
    assert json.loads((out / "store.json").read_text())["address"].startswith("embedded:")
    assert max(backend.bought.values()) == 1


def test_a_store_that_has_dropped_what_the_files_have_lost_says_where_to_go_on(
    tmp_path: Path, lived: tuple[RunResult, Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metropolis.runtime.live.executor.RELEASE_S", 0.0)
    out, backend = tmp_path / "it", Counting()
    left_at(STEPS // 2, backend, out, "embedded")
    Path(out / "history.jsonl").write_bytes(b"")
    gc.disable()
    try:
        for _ in range(2):  # a refused run leaves no server behind, and no locked journal
            with pytest.raises(StoreError, match="resume from the last checkpoint"):
                simulation(backend, out=out, resume=True)
    finally:
        gc.enable()
    same(simulation(backend, out=out, resume=True, store="memory").run(STEPS), lived[0])
    assert max(backend.bought.values()) == 1


def test_a_store_without_some_of_its_commits_says_where_to_go_on(
    tmp_path: Path, shared: EmbeddedServer, lived: tuple[RunResult, Checkpoints]
) -> None:
    out, backend = tmp_path / "it", Counting()
    left_at(STEPS // 2, backend, out, shared.url)
    run = json.loads((out / "store.json").read_text())["run"]
    acknowledgements = f"metropolis:{{{run}}}:acks"
    ((last, _),) = shared.client.xrevrange(acknowledgements, count=1)
    shared.client.xdel(acknowledgements, last)
    with pytest.raises(StoreError, match=r"lacks some of the run's commits since step \d+; resume"):
        simulation(backend, out=out, resume=True).run(STEPS)
    same(simulation(backend, out=out, resume=True, store="memory").run(STEPS), lived[0])
    assert max(backend.bought.values()) == 1


def test_checkpoints_are_those_of_a_run_in_memory(
    tmp_path: Path, shared: EmbeddedServer, lived: tuple[RunResult, Checkpoints]
) -> None:
    compared: Counter[int] = Counter()
    for number in range(20):
        out = tmp_path / str(number)
        simulation(Counting(), out=out, store=shared.url, workers=2, checkpoint_wall_s=0).run(STEPS)
        found = Checkpoints(out / "checkpoints")
        assert found.steps()[-1] == STEPS
        for step in set(found.steps()) & set(lived[1].steps()):
            ours, theirs = found.newest(step), lived[1].newest(step)
            assert ours is not None
            assert theirs is not None
            assert (ours.step, ours.entities, ours.events) == (step, theirs.entities, theirs.events)
            assert ours.agents == theirs.agents
            compared[step] += step < STEPS
        if compared.total() > 5:
            return
    raise AssertionError(f"too few steps to compare: {compared}")


@pytest.mark.usefixtures("cluster")
def test_answers_of_workers_on_ray_are_lost_with_it(
    tmp_path: Path, valkey: EmbeddedServer, lived: tuple[RunResult, Checkpoints]
) -> None:
    """The lost answers are bought again. A branch can only start at a checkpoint."""
    out = tmp_path / "it"
    run = simulation(Counting(), out=out, store=valkey.url, workers="ray:2", checkpoint_wall_s=0)
    steps = run.steps(STEPS)
    for record in steps:
        if record.step > STEPS // 3 and Checkpoints(out / "checkpoints").steps():
            break
    steps.close()
    *earlier, kept = Checkpoints(out / "checkpoints").steps()
    for step in earlier:
        (out / "checkpoints" / f"{step}.json.gz").unlink()
    parts = run.world, simulation(Counting()).agents
    with pytest.raises(MetropolisError, match=rf"no answer to .* checkpoint: .*\b{kept}\b"):
        metropolis.fork(out, *parts, at=kept - 1, out=tmp_path / "none")
    metropolis.fork(out, *parts, at=kept, out=tmp_path / "branch")
    valkey.remove(json.loads((out / "store.json").read_text())["run"])
    backend = Counting()
    for folder in (out, tmp_path / "branch"):
        resumed = simulation(backend, out=folder, resume=True, store="memory")
        assert resumed.first_step == kept
        same(resumed.run(STEPS), lived[0])
    assert set(backend.bought.values()) == {2}
