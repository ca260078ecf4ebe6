"""Values of several seeds as one cell of a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

SPREAD = "mean ± standard deviation"
"""What `spread` shows, for titles."""


def spread(values: Sequence[float], form: str) -> str:
    """The mean, with the standard deviation if there are several values; each in format `form`."""
    text = format(fmean(values), form)
    return text if len(values) == 1 else f"{text} ±{format(stdev(values), form)}"
