"""What an edit left at the beginning of a branch: its history does not contain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import Step
from metropolis.world.entities import Entity


def edited_entities(directory: RunDirectory) -> Mapping[Step, Sequence[Entity]]:
    """All entities at the first step of a branch whose edit changed something; else empty."""
    for branch in directory.lineage[-1:]:
        if branch.edited and branch.step in directory.checkpoints.steps():
            return {branch.step: directory.checkpoints.read(branch.step).entities}
    return {}
