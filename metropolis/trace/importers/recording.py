"""The common form of all movement formats, and shared parsers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

import numpy as np
import numpy.typing as npt

from metropolis.names import cut
from metropolis.trace.shown import Shown
from metropolis.types import MetropolisError

MIDNIGHT = datetime(2023, 2, 13)
"""The default start of a recording: the day on which GenAgent's runs start."""


@dataclass(frozen=True)
class Recording:
    """The content of a movement file, before radius, velocity and map are determined.

    `positions` is (steps, agents, 2). Values that the file does not give are None.
    """

    agents: tuple[str, ...]
    positions: npt.NDArray[np.floating]
    name: str
    source: str
    radius: float | None = None
    velocity: float | None = None
    step_s: float | None = None
    start: datetime | None = None
    movement_metric: str | None = None
    """The metric of moves, if it differs from that of perception: GenAgent's agents walk to
    4-neighbours but perceive a square."""
    shown: tuple[Shown, ...] | None = None
    surplus: tuple[str, ...] = ()
    """People with a first position who are not agents of the run."""


def parse_start(text: object, place: str) -> datetime:
    """Parse a date and time, or a time of day such as 06:30."""
    start = None
    with suppress(ValueError):
        start = datetime.fromisoformat(str(text))
    with suppress(ValueError):
        start = datetime.combine(MIDNIGHT, time.fromisoformat(str(text)))
    if start is None or start.tzinfo is not None:
        raise MetropolisError(
            f"{place} is {cut(text)}; it should be a date and time such as 2023-02-13T06:30:00,"
            " or a time of day such as 06:30, with no time zone"
        )
    return start


def parse_number(value: object, place: str) -> float:
    """Parse a JSON number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise MetropolisError(f"{place} is {cut(value)}; it should be a number")
    return float(value)


def parse_tracks(tracks: dict[str, Any], place: str, width: int) -> npt.NDArray[np.float64]:
    """(steps, agents, width) from one list per agent, all equally long; width 1: plain numbers."""
    for name, track in tracks.items():
        if not isinstance(track, list):
            raise MetropolisError(
                f"{place}, agent {cut(name)}: the track is {cut(track)}; it should be a list"
            )
    lengths = {name: len(track) for name, track in tracks.items()}
    steps = max(lengths.values(), default=0)
    if not steps:
        raise MetropolisError(f"{place}: holds no positions; it should have one per agent and step")
    for name, length in lengths.items():
        if length != steps:
            raise MetropolisError(
                f"{place}, agent {cut(name)}: has {length} steps while others have {steps}, so"
                f" step {length} is missing; every agent should have the same number"
            )
    right = "a pair [x, y] of numbers" if width > 1 else "a number"
    for name, track in tracks.items():
        for step, entry in enumerate(track):
            numbers = entry if width > 1 else [entry]
            if (
                not isinstance(numbers, list)
                or len(numbers) != width
                or not all(type(n) is float or (type(n) is int and abs(n) < 1e15) for n in numbers)
            ):
                raise MetropolisError(
                    f"{place}, step {step}, agent {cut(name)}: the position is {cut(entry)};"
                    f" it should be {right}"
                )
    positions = np.array(list(tracks.values()), np.float64)
    return positions.reshape(len(tracks), steps, width).transpose(1, 0, 2)
