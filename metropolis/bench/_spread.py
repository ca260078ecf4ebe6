"""Values of several seeds as one figure, and as one cell of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

SPREAD = "mean ± standard deviation"
"""What `spread` shows, for titles."""


@dataclass(frozen=True)
class OverSeeds:
    """The mean of one figure, and its standard deviation (0 for one seed)."""

    mean: float
    spread: float

    @classmethod
    def of(cls, values: Iterable[float]) -> OverSeeds:
        """Summarize the values of the seeds."""
        found = [float(value) for value in values]
        return cls(fmean(found), stdev(found) if len(found) > 1 else 0.0)


def spread(values: Sequence[float], form: str) -> str:
    """The mean, with the standard deviation if there are several values; each in format `form`."""
    found = OverSeeds.of(values)
    text = format(found.mean, form)
    return text if len(values) == 1 else f"{text} ±{format(found.spread, form)}"
