"""Compares two histories: the steps that differ, and since when and how each agent differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from metropolis.names import cut
from metropolis.runtime.folder.history import line_of
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import MetropolisError, Step
from metropolis.world.record import StepRecord


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs, over the steps that both have."""

    steps: Step
    differing: Step
    """Number of steps that differ."""
    since: Mapping[str, Step]
    """Name of an agent or thing -> the first step with a different action, entity or event, in the
    order of steps; empty if the histories are equal."""
    how: Mapping[str, str]
    """Name of an agent or thing -> a description of its first difference, with both values."""

    @property
    def first(self) -> Step | None:
        """The first step that differs; None: the histories are equal."""
        return min(self.since.values(), default=None)


@dataclass(frozen=True)
class Difference:
    """A difference between two records of a step."""

    name: str
    """The agent or thing whose action, body, state or event differs."""
    what: str
    """A description with both values."""


def compare(run: str | Path, other: str | Path) -> Comparison:
    """Compare the runs in two folders.

    Raises MetropolisError if a folder contains no run, or the runs are of different worlds.
    """
    check_same_world(run, other)
    folders = [RunDirectory(Path(path)) for path in (run, other)]
    for folder in folders:
        folder.read()  # files of another run are refused
    steps = min(folder.recorded_steps for folder in folders)
    differing, since, how = 0, dict[str, Step](), dict[str, str]()
    both = zip(*(folder.records(steps) for folder in folders), strict=True)
    for step, (one, another) in enumerate(both):
        if names := _differing(one, another):
            differing += 1
            if new := [name for name in names if name not in since]:
                since |= dict.fromkeys(new, step)
                found = [*_differences(line_of(one), line_of(another))]
                first = {each.name: each.what for each in reversed(found)}
                how |= {name: first[name] for name in new}
    return Comparison(steps, differing, since, how)


def check_same_world(run: str | Path, other: str | Path) -> None:
    """Raise MetropolisError if a folder contains no run, or the runs are of different worlds."""
    world, another = (RunDirectory(Path(path)).read()["world"] for path in (run, other))
    if world != another:
        raise MetropolisError(
            f"{run} is a run of the world {world!r}, and {other} one of {another!r}; name two runs "
            "of one world"
        )


def _differing(one: StepRecord, other: StepRecord) -> list[str]:
    """Names whose actions, entities or events differ between the records."""
    parts, others = _parts(one), _parts(other)
    return sorted(n for n in parts.keys() | others.keys() if parts.get(n) != others.get(n))


def _parts(record: StepRecord) -> dict[str, list[object]]:
    """Name -> its action, unless it is None, the entity that was written, and its events."""
    parts: defaultdict[str, list[object]] = defaultdict(list)
    for name, action in record.actions.items():
        if action is not None:
            parts[name].append(("acts", action))
    for name, entity in record.writes.items():
        parts[name].append(("is", entity))
    for event in record.events:
        parts[event.source].append(event)
    return parts


def first_difference(expected: StepRecord, found: StepRecord) -> Difference | None:
    """The first difference in actions, entities and events; None: the records are equal."""
    lines = line_of(expected), line_of(found)
    if lines[0] == lines[1]:
        return None
    for difference in _differences(*lines):
        return difference
    raise AssertionError(lines)


def _differences(expected: bytes, found: bytes) -> Iterator[Difference]:
    """The first difference of each action, entity and events of an agent, in this order."""
    was, is_ = _sections(expected), _sections(found)
    for section in was:
        for name in sorted(was[section].keys() | is_[section].keys()):
            before, after = was[section].get(name, _ABSENT), is_[section].get(name, _ABSENT)
            path, left, right = _differing_values(before, after, ())
            if not _same(left, right):
                inner = "".join(f"[{key!r}]" for key in path)
                what = f"the {section} {name!r}{inner} is {_shown(right)} instead of {_shown(left)}"
                yield Difference(name, what)


def _sections(line: bytes) -> dict[str, dict[str, Any]]:
    record = msgspec.json.decode(line)
    events: dict[str, Any] = {}
    for event in record.get("events", []):
        events.setdefault(event["source"], []).append(event)
    return {
        "action of": record.get("actions", {}),
        "entity": record.get("writes", {}),
        "event of": {source: dict(enumerate(of)) for source, of in events.items()},
    }


_ABSENT = object()
"""Stands for a key missing in one dict; null is a value, e.g. of a removed entity."""


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else cut(value)


def _same(left: Any, right: Any) -> bool:
    """Whether their JSON texts are equal, unlike those of 1 and 1.0."""
    if left is _ABSENT or right is _ABSENT:
        return left is right
    return msgspec.json.encode(left) == msgspec.json.encode(right)


def _differing_values(
    left: Any, right: Any, path: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Any, Any]:
    """The path and values of the first difference between two JSON values; no path: equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            a, b = left.get(key, _ABSENT), right.get(key, _ABSENT)
            if not _same(a, b):
                return _differing_values(a, b, (*path, key))
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            if not _same(a, b):
                return _differing_values(a, b, (*path, number))
    return path, left, right
