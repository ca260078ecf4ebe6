"""What an edit left at the beginning of a branch: its history does not contain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import Step
from metropolis.world.entities import Entity


def edited_entities(directory: RunDirectory) -> Mapping[Step, Sequence[Entity]]:
    """All entities at the first step of a branch, if an edit on the way there changed something.

    Otherwise empty.
    """
    lineage = directory.lineage
    if not any(branch.edited for branch in lineage):
        return {}
    step = lineage[-1].step
    if step not in directory.checkpoints.steps():
        return {}
    return {step: directory.checkpoints.read(step).entities}
