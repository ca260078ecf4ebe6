"""The plan of a day as the schedules of a Generative Agents persona: lists of [text, minutes].

Both begin at midnight: `f_daily_schedule_hourly_org` has the entries of the day, and
`f_daily_schedule` in place of those that are planned in detail their tasks, as `entry (task)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from metropolis.world.appearance import Schedule, number_of, objects_at, text_of

DAY_MINUTES = 24 * 60


class _Entry(NamedTuple):
    what: str
    start: int
    """Minutes after midnight."""
    end: int


def schedules_of(where: Schedule, mind: Any, midnight_s: float) -> dict[str, Any]:
    """The fields of the day that begins `midnight_s` after the midnight before step 0.

    They are empty if the mind has no plan of that day.
    """
    hours, tasks = (_entries(where, mind, path, midnight_s) for path in (where.hours, where.tasks))
    if not hours or hours[0].start < 0:
        hours = tasks = []
    return {
        "f_daily_schedule": _listed(_detailed(hours, tasks)),
        "f_daily_schedule_hourly_org": _listed(hours),
    }


def _entries(where: Schedule, mind: Any, path: str, midnight_s: float) -> list[_Entry]:
    found = []
    for entry in objects_at(mind, path):
        start_s, end_s = (number_of(entry.get(key)) for key in (where.start_s, where.end_s))
        if start_s is not None and end_s is not None:
            minutes = (round((of_s - midnight_s) / 60) for of_s in (start_s, end_s))
            found.append(_Entry(text_of(entry.get(where.what)), *minutes))
    return sorted(found, key=lambda entry: entry.start)


def _detailed(hours: Sequence[_Entry], tasks: Iterable[_Entry]) -> list[_Entry]:
    """The tasks, and between them the entries without any."""
    found, at = [], 0
    for task in tasks:
        start = max(at, task.start)
        within = _between(hours, start, task.end)
        if within:
            found += _between(hours, at, start)
            longest = max(within, key=lambda entry: entry.end - entry.start)
            found.append(_Entry(f"{longest.what} ({task.what})", start, task.end))
            at = task.end
    return found + _between(hours, at, DAY_MINUTES)


def _between(hours: Iterable[_Entry], first: int, last: int) -> list[_Entry]:
    """The parts of entries within [first, last); round brackets enclose tasks only."""
    parts = (
        _Entry(
            entry.what.replace("(", "[").replace(")", "]"),
            max(entry.start, first),
            min(entry.end, last),
        )
        for entry in hours
    )
    return [part for part in parts if part.start < part.end]


def _listed(entries: Iterable[_Entry]) -> list[list[Any]]:
    """[text, minutes]; an entry begins where the one before it ends."""
    listed, at = [], 0
    for entry in entries:
        end = min(DAY_MINUTES, entry.end)
        if end > at:
            listed.append([entry.what, end - at])
            at = end
    return listed
