"""What a run that ended early, or did not begin, leaves to the next command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metropolis.controller.native import NativeController
from metropolis.runtime.folder.checkpoint import Checkpoints
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.store.embedded import EmbeddedServer
from metropolis.types import MetropolisError
from tests.runtime.purchases import Counting, leave
from tests.runtime.test_stored import STEPS, simulation


def refuse(*_: Any, **__: Any) -> NativeController:
    raise MetropolisError("the agents are at different steps")


def test_a_refused_resume_holds_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"out": tmp_path / "it", "store": "embedded"}
    simulation(Counting(), **how).run(STEPS // 2)
    with monkeypatch.context() as patch:
        patch.setattr(NativeController, "of_rule", refuse)
        run = simulation(Counting(), resume=True, **how)
        with pytest.raises(MetropolisError, match="different steps"):
            run.run(STEPS)
    resumed = simulation(Counting(), resume=True, lease_s=300.0, **how)
    assert resumed._stored.store.inspect().lease_left_s == 0
    assert resumed.run(STEPS).steps == STEPS


def test_a_run_that_steps_back_leaves_no_later_checkpoint(tmp_path: Path) -> None:
    """A store may release later than the folder has a checkpoint."""
    out = tmp_path / "it"
    run = simulation(Counting(), out=out, store="embedded", checkpoint_wall_s=0)
    run._stored.store.collect = lambda *_: None  # type: ignore[method-assign]
    leave(run, STEPS, STEPS // 2)
    assert Checkpoints(out / "checkpoints").steps()[-1] > 0
    again = simulation(Counting(), out=out, store="embedded", resume=True)
    steps = again.steps(STEPS)
    next(steps)
    steps.close()
    directory = RunDirectory(out)
    directory.read()
    assert max(directory.checkpoints.steps(), default=0) <= directory.recorded_steps
    whole = simulation(Counting(), out=tmp_path / "whole").run(STEPS)
    resumed = simulation(Counting(), out=out, store="embedded", resume=True).run(STEPS)
    assert resumed.history_sha256 == whole.history_sha256


def test_the_journal_exists_before_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that is killed while its server starts would lack it, and could not be shown."""
    journals = []

    def start(self: EmbeddedServer, *_: object) -> None:
        journals.append((tmp_path / "it" / "journal.jsonl").exists())
        raise MetropolisError("killed")

    monkeypatch.setattr(EmbeddedServer, "__init__", start)
    with pytest.raises(MetropolisError, match="killed"):
        simulation(Counting(), out=tmp_path / "it", store="embedded")
    assert journals == [True]
