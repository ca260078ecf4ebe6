"""The current state of a resident: its day, its activity, its conversation."""

from __future__ import annotations

from dataclasses import dataclass, field

from metropolis.worlds.smallville.dialogue import Line
from metropolis.worlds.smallville.geography import Tile

MINUTE_S, HOUR_S = 60, 3600
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Task:
    """A planned task, from `start_s` to `end_s` on the town's clock."""

    what: str
    start_s: int
    end_s: int


@dataclass
class Day:
    """The plan of one day."""

    number: int = -1
    """Number of the day, counted from the day of step 0; -1: there is no plan yet."""
    outline: list[str] = field(default_factory=list)
    """The outline of the plan, one line for each part of the day."""
    hours: list[Task] = field(default_factory=list)
    """The schedule of all 24 hours; equal consecutive entries are merged."""
    tasks: list[Task] = field(default_factory=list)
    """The part of the day that has been planned in detail."""
    intentions: list[str] = field(default_factory=list)
    """The conclusions of today's conversations."""


@dataclass
class Activity:
    """The current activity, or the one to which the resident is walking."""

    what: str = ""
    place: str = ""
    """Place of the activity, as `sector: arena`."""
    thing: str = ""
    """Object that the activity uses."""
    thing_doing: str = ""
    """Visible state of that object during the activity."""
    goal: Tile = (0, 0)
    """The tile of the activity."""
    until_s: int = 0
    asleep: bool = False


@dataclass
class Talk:
    """A conversation in progress."""

    partner: str
    about: str
    lines: tuple[Line, ...]
    until_s: int
    memory: int
    """The number of its node in the memory."""
    meeting: Tile
    """The tile to which the resident walks during the conversation."""


def end_clock(task: Task) -> str:
    """The time of day at which `task` ends; midnight is 24:00."""
    return clock(task.end_s) if task.end_s % DAY_S else "24:00"


def day_of(now_s: int) -> int:
    """Number of the day of `now_s`, counted from the day of step 0."""
    return now_s // DAY_S


def clock(now_s: int) -> str:
    """The time of day, as 07:05."""
    minutes = now_s % DAY_S // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
