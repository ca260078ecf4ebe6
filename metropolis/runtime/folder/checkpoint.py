"""The whole simulation between two steps, as a file: the world, the agents, the run's clock.

A run keeps its newest checkpoint and some earlier ones, evenly spaced, so that it can be resumed
(`metropolis resume`) or forked (`metropolis fork`) without starting from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from metropolis.durable import reported
from metropolis.line_file import Format, Mark, read_document, write_document
from metropolis.types import Step
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
)
from metropolis.world.entities import Entity, Event

CHECKPOINT = Format(
    "metropolis checkpoint", 3, "remove the file to continue from an earlier one, or restore it"
)
SUFFIX = ".json.gz"
KEPT_MOST = 16
"""Maximum number of checkpoints of a run."""


@dataclass(frozen=True)
class Past:
    """The state of the run's files at a checkpoint, which is only valid with these files."""

    seed: int
    """The seed of all randomness from this step on."""
    history_sha256: str
    calls: Mark
    journal: Mark | None
    """The end of the journal; None if the answers are kept elsewhere."""


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run needs to continue at `step`."""

    step: Step
    entities: list[Entity]
    events: list[Event]
    agents: Mapping[str, Any]
    """Name -> what `metropolis.world.saving.save` returned."""
    now_s: float
    """The run's clock: virtual time if the model is simulated."""
    past: Past | None
    """The state of the run's files; None if the checkpoint was made from the run's store."""


class Checkpoints:
    """The checkpoints of one run, each in `STEP.json.gz` in `folder`."""

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder, self.run = folder, run

    def steps(self) -> list[Step]:
        """The steps with a checkpoint, in order."""
        names = (path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}"))
        return sorted(int(name) for name in names if name.isdecimal())

    def newest(self, at_most: Step) -> Checkpoint | None:
        """The newest up to step `at_most`. Raises MetropolisError if it is unreadable."""
        steps = [step for step in self.steps() if step <= at_most]
        return self.read(steps[-1]) if steps else None

    def read(self, step: Step) -> Checkpoint:
        """The checkpoint of `step`. Raises MetropolisError if it is unreadable."""
        return read_checkpoint(self.path(step), self.run)

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; at the limit drop another one, but never the first or the newest."""
        with reported(self.folder):
            self.folder.mkdir(exist_ok=True)
        write_checkpoint(self.path(checkpoint.step), checkpoint, self.run or "")
        steps = self.steps()
        if len(steps) > KEPT_MOST:
            inner = range(1, len(steps) - 1)
            crowded = min(inner, key=lambda place: steps[place + 1] - steps[place - 1])
            self.path(steps[crowded]).unlink()

    def remove_beyond(self, step: Step) -> None:
        """Remove the checkpoints of later steps."""
        for later in self.steps():
            if later > step:
                self.path(later).unlink()

    def path(self, step: Step) -> Path:
        """The path of the checkpoint of `step`."""
        return self.folder / f"{step}{SUFFIX}"


def write_checkpoint(path: Path, checkpoint: Checkpoint, run: str) -> None:
    """Write atomically. Raises UnwritableError."""
    write_document(path, CHECKPOINT, run, _pieces(checkpoint))


def _pieces(checkpoint: Checkpoint) -> Iterator[bytes]:
    """The checkpoint as JSON, agent by agent: all of them together take a lot of memory."""
    encode = msgspec.json.encode
    content = vars(checkpoint) | {
        "entities": {entity.name: entity_to_json(entity) for entity in checkpoint.entities},
        "events": [event_to_json(event) for event in checkpoint.events],
    }
    agents = content.pop("agents")
    yield encode(content)[:-1] + b',"agents":{'
    for number, (name, mind) in enumerate(agents.items()):
        yield b"%b%b:%b" % (b"," if number else b"", encode(name), encode(mind))
    yield b"}}"


def read_checkpoint(path: Path, run: str | None = None) -> Checkpoint:
    """Raises MetropolisError unless the file is a checkpoint of `run` (None: of any run)."""
    content = read_document(path, CHECKPOINT, run)
    try:
        content["entities"] = [entity_from_json(*item) for item in content["entities"].items()]
        content["events"] = [event_from_json(event) for event in content["events"]]
        content["past"] = msgspec.convert(content["past"], Past | None)
        found = Checkpoint(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CHECKPOINT.damaged(path, 1, f"it is not a checkpoint: {error}") from error
    if path.name != f"{found.step}{SUFFIX}":
        raise CHECKPOINT.damaged(path, 1, f"it is the checkpoint of step {found.step}")
    return found
