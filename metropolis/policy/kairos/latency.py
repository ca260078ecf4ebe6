"""The latency distribution of a function, and whether it has converged (Kairos §4.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FIRST = 8
WINDOW = 512
LEVELS = 64
CONVERGED = 0.1
"""Maximum distance between two updates of a converged distribution, as a share of its mean."""

Quantiles = npt.NDArray[np.float64]
_AT = (np.arange(LEVELS) + 0.5) / LEVELS


class Latencies:
    """The latest `window` samples. The distribution is updated whenever their number has doubled,
    later whenever all samples are new, because load and users change.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self._window = window
        self._count, self._due = 0, FIRST
        self.quantiles: Quantiles | None = None
        """(LEVELS,): at the midpoints of equal shares, at the latest update; None before any."""
        self.has_converged = False
        """Whether two consecutive updates have ever given nearly the same distribution."""

    def add(self, latency_s: float) -> bool:
        """Add a sample; True when `quantiles` were updated."""
        self._samples.append(latency_s)
        self._count += 1
        if self._count < self._due:
            return False
        self._due = min(2 * self._count, self._count + self._window)
        before, self.quantiles = self.quantiles, _quantiles(self._samples)
        if before is not None:
            moved_s = wasserstein(before, self.quantiles)
            self.has_converged |= moved_s <= CONVERGED * float(self.quantiles.mean())
        return True

    def mean_beyond(self, lasted_s: float) -> float | None:
        """The mean of the latencies longer than `lasted_s`.

        None before the distribution has converged, and if no latency is longer.
        """
        if self.quantiles is None or not self.has_converged:
            return None
        longer = self.quantiles[self.quantiles > lasted_s]
        return float(longer.mean()) if len(longer) else None


def _quantiles(samples: Sequence[float]) -> Quantiles:
    """Equal to numpy.quantile, in a tenth of the time."""
    ordered = np.sort(np.fromiter(samples, np.float64, len(samples)))
    found: Quantiles = np.interp(_AT * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return found


def wasserstein(p: Quantiles, q: Quantiles) -> float:
    """The Wasserstein distance of two one-dimensional distributions, from their quantiles."""
    return float(np.abs(p - q).mean())
