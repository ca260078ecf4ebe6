"""The whole simulation between two steps, as a file: the world, the agents, the run's clock.

Of the checkpoints of a run the newest and some earlier ones stay, spread evenly, so that a run can
go on (`metropolis resume`) or branch off (`metropolis fork`) without starting at its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from metropolis.durable import Format, Mark, read_document, reported, write_document
from metropolis.types import Step
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
)
from metropolis.world.entities import Entity, Event

CHECKPOINT = Format(
    "metropolis checkpoint", 3, "remove the file to go on from an earlier one, or put it back"
)
KEPT_MOST = 16
"""Checkpoints of one run."""


@dataclass(frozen=True)
class Past:
    """What the run's files held at a checkpoint, so that it is used with no others."""

    seed: int
    """Of all randomness from the step on."""
    history_sha256: str
    calls: Mark
    journal: Mark | None
    """None: answers were kept elsewhere."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on at `step`."""

    step: Step
    entities: list[Entity]
    events: list[Event]
    agents: Mapping[str, Any]
    """Name -> what `metropolis.world.saving.save` returned."""
    now_s: float
    """The run's clock: virtual time if the model is simulated."""
    past: Past | None
    """None: the run's store has made the checkpoint."""


class Checkpoints:
    """Those of one run, `STEP.json` in `folder` each."""

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder, self.run = folder, run

    def steps(self) -> list[Step]:
        """Whose checkpoints there are, in order."""
        names = (path.stem for path in self.folder.glob("*.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def newest(self, at_most: Step) -> Checkpoint | None:
        """The newest up to step `at_most`. Raises MetropolisError when it cannot be read."""
        steps = [step for step in self.steps() if step <= at_most]
        return self.read(steps[-1]) if steps else None

    def read(self, step: Step) -> Checkpoint:
        """That of `step`. Raises MetropolisError when it cannot be read."""
        return read_checkpoint(self.path(step), self.run)

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep one more, and drop one if they are too many: never the first or the newest."""
        with reported(self.folder):
            self.folder.mkdir(exist_ok=True)
        write_checkpoint(self.path(checkpoint.step), checkpoint, self.run or "")
        steps = self.steps()
        if len(steps) > KEPT_MOST:
            inner = range(1, len(steps) - 1)
            crowded = min(inner, key=lambda place: steps[place + 1] - steps[place - 1])
            self.path(steps[crowded]).unlink()

    def path(self, step: Step) -> Path:
        """Where that of `step` is."""
        return self.folder / f"{step}.json"


def write_checkpoint(path: Path, checkpoint: Checkpoint, run: str) -> None:
    """Whole or not at all. Raises UnwritableError."""
    content = vars(checkpoint) | {
        "entities": {entity.name: entity_to_json(entity) for entity in checkpoint.entities},
        "events": [event_to_json(event) for event in checkpoint.events],
    }
    write_document(path, CHECKPOINT, run, msgspec.json.encode(content))


def read_checkpoint(path: Path, run: str | None = None) -> Checkpoint:
    """Raises MetropolisError when the file is none of `run` (None: of any run)."""
    content = read_document(path, CHECKPOINT, run)
    try:
        content["entities"] = [entity_from_json(*item) for item in content["entities"].items()]
        content["events"] = [event_from_json(event) for event in content["events"]]
        content["past"] = msgspec.convert(content["past"], Past | None)
        found = Checkpoint(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CHECKPOINT.damaged(path, 1, f"it is not a checkpoint: {error}") from error
    if path.stem != f"{found.step}":
        raise CHECKPOINT.damaged(path, 1, f"it is the checkpoint of step {found.step}")
    return found
