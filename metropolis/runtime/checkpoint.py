"""The whole simulation between two steps, as a file: the world, the agents, the places in files.

A checkpoint of step F is gathered while the run goes on: each agent is saved when it commits step
F - 1, the world is read when the floor reaches F (versions make that exact). So every agent stands
at the same step, and a run taken up there is a run begun there.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from metropolis.types import AgentId, MetropolisError, Step
from metropolis.world.base import Agent
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
)
from metropolis.world.entities import Entity, Event
from metropolis.world.saving import save
from metropolis.world.state import State

FORMAT = "metropolis-checkpoint"
VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on at `step`."""

    step: Step
    entities: list[Entity]
    events: list[Event]
    agents: Mapping[str, Any]
    """Name -> what `metropolis.world.saving.save` returned."""
    history_bytes: int
    calls_bytes: int
    now_s: float
    """The run's clock: virtual time if the model is simulated."""


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Whole or not at all; the file before it stays until then."""
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
            f"{path}: is no checkpoint that this release reads ({error}); "
            "start the run anew in another folder"
        ) from error


class Checkpointer:
    """Writes a checkpoint every `every_wall_s`, and one of the last step, while the run goes on."""

    def __init__(
        self, path: Path, agents: Sequence[Agent], last_step: Step, every_wall_s: float
    ) -> None:
        self._path, self._agents, self._last = path, agents, last_step
        self._every_wall_s = every_wall_s
        self._due_wall_s = time.monotonic() + every_wall_s
        self._saved: dict[Step, dict[str, Any]] = defaultdict(dict)
        self.step = last_step
        """The step of the next checkpoint."""

    def commit(self, step: Step, agents: Iterable[AgentId]) -> None:
        """`agents` have committed `step` and not begun the next one."""
        if step + 1 in (self.step, self._last):  # who is ahead may reach the last one before this
            for agent in agents:
                self._saved[step + 1][self._agents[agent].name] = save(self._agents[agent])

    def plan(self, newest_step: Step) -> None:
        """When it is time, aim at the first step that nobody has come to."""
        if time.monotonic() >= self._due_wall_s and newest_step + 1 < self.step == self._last:
            self.step = newest_step + 1

    def write(self, state: State, history_bytes: int, calls_bytes: int, now_s: float) -> None:
        """The floor is at `step`."""
        entities, events = state.at(self.step)
        saved = self._saved.pop(self.step)
        write_checkpoint(
            self._path,
            Checkpoint(self.step, entities, events, saved, history_bytes, calls_bytes, now_s),
        )
        self.step = self._last
        self._due_wall_s = time.monotonic() + self._every_wall_s
