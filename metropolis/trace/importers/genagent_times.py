"""When the steps of a Generative Agents run began: by the times in movement/, or by meta.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np

from metropolis.names import cut
from metropolis.trace.importers.files import read_json
from metropolis.types import MetropolisError

DATE, CLOCK = "%B %d, %Y", "%B %d, %Y, %H:%M:%S"
"""The project's formats of dates and times."""
_STEPS = 100
"""Files of movement/ whose times are read."""


def times_of(
    moves: Mapping[int, Path], meta: Path, steps: int
) -> tuple[datetime | None, float | None]:
    """Start and step length of a run of `steps` steps; None: its files do not say."""
    start, step_s = _by_movement(moves)
    if start is None or step_s is None:
        of_meta = _by_meta(meta, steps)
        start, step_s = start or of_meta[0], step_s or of_meta[1]
    return start, step_s


def _by_movement(moves: Mapping[int, Path]) -> tuple[datetime | None, float | None]:
    """Start and step length by the times in movement/; None: they do not say.

    The step length is the most frequent one of the first steps.
    """
    times: dict[int, datetime] = {}
    for step in sorted(moves)[:_STEPS]:
        with suppress(KeyError, TypeError, ValueError):
            times[step] = datetime.strptime(read_json(moves[step])["meta"]["curr_time"], CLOCK)
    if not times:
        return None, None
    lengths = Counter(
        (times[after] - times[before]).total_seconds() / (after - before)
        for before, after in pairwise(times)
        if times[after] > times[before]
    )
    step_s = lengths.most_common(1)[0][0] if lengths else None
    first = next(iter(times))
    with suppress(OverflowError):
        return times[first] - timedelta(seconds=first * (step_s or 0)), step_s
    return None, None


def _by_meta(path: Path, steps: int) -> tuple[datetime | None, float | None]:
    """Start and step length from a run's meta.json, if it exists.

    Its `sec_per_step` is that of the last session (1800 in a published run of 10 s steps). If the
    run would then have begun before its `start_date`, it began at that midnight, and the elapsed
    time is divided by the number of steps.
    """
    if not path.exists():
        return None, None
    meta = read_json(path)
    if not isinstance(meta, dict):
        raise MetropolisError(f"{path}: is {type(meta).__name__}; it should be a JSON object")
    try:
        midnight = datetime.strptime(meta["start_date"], DATE)
        now = datetime.strptime(meta["curr_time"], CLOCK)
        step_s = float(meta["sec_per_step"])
        start = now - timedelta(seconds=step_s * meta["step"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MetropolisError(
            f"{path}: cannot be parsed ({cut(error)}); it should have start_date"
            " (February 13, 2023), curr_time (February 13, 2023, 00:01:00), sec_per_step and step"
        ) from None
    if start < midnight:
        start = midnight
        if now > midnight:
            step_s = max(1.0, float(np.rint((now - midnight).total_seconds() / steps)))
    return start, step_s
