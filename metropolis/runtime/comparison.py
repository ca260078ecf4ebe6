"""Two histories side by side: where they part, and whose lives differ from when on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from metropolis.runtime.run_directory import RunDirectory
from metropolis.types import Step
from metropolis.world.record import StepRecord


@dataclass(frozen=True)
class Comparison:
    """Of two runs, as far as both have come."""

    steps: Step
    differing: Step
    """How many of them are not the same in both."""
    since: Mapping[str, Step]
    """Who does, is or causes something else, agents and things: from which step on, the earliest
    first; nobody, if the histories are equal."""

    @property
    def first(self) -> Step | None:
        """The first step that differs; None: there is none."""
        return min(self.since.values(), default=None)


def compare(run: str | Path, other: str | Path) -> Comparison:
    """The runs in two folders. Raises MetropolisError when there is none in one of them."""
    folders = [RunDirectory(Path(path)) for path in (run, other)]
    for folder in folders:
        folder.read()
    steps = min(folder.recorded for folder in folders)
    differing, since = 0, dict[str, Step]()
    both = zip(*(folder.records(steps) for folder in folders), strict=True)
    for step, (one, another) in enumerate(both):
        if names := _differing(one, another):
            differing += 1
            since = dict.fromkeys(names, step) | since
    return Comparison(steps, differing, dict(sorted(since.items(), key=lambda item: item[1])))


def _differing(one: StepRecord, other: StepRecord) -> list[str]:
    """Who does not do, become or cause the same in both."""
    names = one.actions.keys() | other.actions.keys() | one.writes.keys() | other.writes.keys()
    names |= {event.source for event in [*one.events, *other.events]}
    return sorted(name for name in names if _part(one, name) != _part(other, name))


def _part(record: StepRecord, name: str) -> tuple[object, ...]:
    events = [event for event in record.events if event.source == name]
    return record.actions.get(name), name in record.writes, record.writes.get(name), events
