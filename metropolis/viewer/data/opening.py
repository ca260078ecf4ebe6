"""The sides that a folder has: a run, or the lanes of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.view_file import read_view
from metropolis.timeline.format import FOLDER
from metropolis.types import Step
from metropolis.viewer.data.call_texts import RecordedTexts
from metropolis.viewer.data.history_steps import HistorySteps
from metropolis.viewer.data.locks import is_locked
from metropolis.viewer.data.minds import Minds
from metropolis.viewer.data.side import Side
from metropolis.viewer.data.timeline_columns import TimelineColumns
from metropolis.world.entities import Entity


def open_run(folder: Path) -> Side:
    """The run in `folder`. Raises MetropolisError if there is none, or its files are damaged."""
    directory = RunDirectory(folder)
    directory.read()
    view, meta = read_view(folder)
    steps = HistorySteps(directory.history, directory.run, view, meta, _edited(directory))
    return Side(
        {
            "title": folder.resolve().name,
            "kind": "run",
            "mode": view.mode,
            "target": view.target,
            "forked": _forked(directory),
        },
        meta,
        steps,
        TimelineColumns(folder / FOLDER, len(meta.agents)),
        RecordedTexts(directory.calls, steps.calls),
        Minds(folder, directory.run, meta, view.appearance.memories),
        lambda: is_locked(directory.journal),
    )


def _forked(directory: RunDirectory) -> dict[str, Any] | None:
    """From which run, at which step and with which edits a branch was made; None: it is none."""
    for branch in directory.lineage[-1:]:
        edits = [branch.edit] if branch.edit else []
        return {"run": branch.run, "step": branch.step, "edits": [*edits, *branch.edited]}
    return None


def _edited(directory: RunDirectory) -> Mapping[Step, Sequence[Entity]]:
    """What exists at the first step of a branch whose edit changed something."""
    for branch in directory.lineage[-1:]:
        if branch.edited and branch.step in directory.checkpoints.steps():
            return {branch.step: directory.checkpoints.read(branch.step).entities}
    return {}
