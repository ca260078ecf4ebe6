"""The entities at the beginning of a branch after its edit, which no history contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import Step
from metropolis.world.entities import Entity


def edited_entities(directory: RunDirectory) -> Mapping[Step, Sequence[Entity]]:
    """First step of a branch -> all entities at that step.

    Empty unless an edit of the branch, or of a branch that it descends from, changed something.
    """
    lineage = directory.lineage
    if not any(branch.edited for branch in lineage):
        return {}
    step = lineage[-1].step
    if step not in directory.checkpoints.steps():
        return {}
    return {step: directory.checkpoints.read(step).entities}
