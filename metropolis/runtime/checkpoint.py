"""The whole simulation between two steps, as a file: the world, the agents, the run's clock.

Of the checkpoints of a run the newest and some earlier ones stay, spread evenly, so that a run can
go on (`metropolis resume`) or branch off (`metropolis fork`) without starting at its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from metropolis.types import MetropolisError, Step
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
)
from metropolis.world.entities import Entity, Event

FORMAT = "metropolis-checkpoint"
VERSION = 2
KEPT_MOST = 16
"""Checkpoints of one run."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on at `step`."""

    step: Step
    entities: list[Entity]
    events: list[Event]
    agents: Mapping[str, Any]
    """Name -> what `metropolis.world.saving.save` returned."""
    calls: int | None
    """How many the steps before have made; None: whatever the file of calls says."""
    now_s: float
    """The run's clock: virtual time if the model is simulated."""


class Checkpoints:
    """Those of one run, `STEP.json` in `folder` each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[Step]:
        """Whose checkpoints there are, in order."""
        return sorted(int(path.stem) for path in self.folder.glob("*.json"))

    def newest(self, at_most: Step) -> Checkpoint | None:
        """The newest up to step `at_most`. Raises MetropolisError when it cannot be read."""
        steps = [step for step in self.steps() if step <= at_most]
        return read_checkpoint(self._path(steps[-1])) if steps else None

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep one more, and drop one if they are too many: never the first or the newest."""
        self.folder.mkdir(exist_ok=True)
        write_checkpoint(self._path(checkpoint.step), checkpoint)
        steps = self.steps()
        if len(steps) > KEPT_MOST:
            inner = range(1, len(steps) - 1)
            crowded = min(inner, key=lambda place: steps[place + 1] - steps[place - 1])
            self._path(steps[crowded]).unlink()

    def _path(self, step: Step) -> Path:
        return self.folder / f"{step}.json"


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Whole or not at all."""
    content = vars(checkpoint) | {
        "format": FORMAT,
        "version": VERSION,
        "entities": {entity.name: entity_to_json(entity) for entity in checkpoint.entities},
        "events": [event_to_json(event) for event in checkpoint.events],
    }
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(content))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises MetropolisError when the file is none."""
    try:
        content = msgspec.json.decode(path.read_bytes())
        if content.pop("format") != FORMAT or content.pop("version") != VERSION:
            raise ValueError("another format or version")
        content["entities"] = [entity_from_json(*item) for item in content["entities"].items()]
        content["events"] = [event_from_json(event) for event in content["events"]]
        return Checkpoint(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetropolisError(
            f"{path}: is no checkpoint that this release reads ({error}); remove the file to go "
            "on from an earlier one"
        ) from error
