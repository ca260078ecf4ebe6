"""The latencies of a function, and when enough of them are known (Kairos §4.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FIRST = 8
WINDOW = 512
LEVELS = 64
CONVERGED = 0.1
"""Of the mean: how far the distribution may move while its sample doubles."""

Quantiles = npt.NDArray[np.float64]
_AT = (np.arange(LEVELS) + 0.5) / LEVELS


class Latencies:
    """The latest `window` samples; the distribution is looked at whenever there are twice as many,
    and later whenever all are new: load and users change.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self._window = window
        self._count, self._due = 0, FIRST
        self.quantiles: Quantiles | None = None
        """(LEVELS,): at the middles of equal shares, as of the last look; None: none yet."""
        self.has_converged = False
        """Whether two looks, one after the other, have ever seen nearly the same."""

    def add(self, latency_s: float) -> bool:
        """Another sample; True when `quantiles` are new."""
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

    @property
    def densest_s(self) -> float | None:
        """Where the density peaks: the middle of the shortest stretch that holds a quarter of all.

        None before the distribution has converged.
        """
        if self.quantiles is None or not self.has_converged:
            return None
        wide = LEVELS // 4
        begin = int(np.argmin(self.quantiles[wide:] - self.quantiles[:-wide]))
        return float(self.quantiles[begin : begin + wide + 1].mean())


def _quantiles(samples: Sequence[float]) -> Quantiles:
    """As numpy.quantile, in a tenth of the time."""
    ordered = np.sort(np.fromiter(samples, np.float64, len(samples)))
    found: Quantiles = np.interp(_AT * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return found


def wasserstein(p: Quantiles, q: Quantiles) -> float:
    """The distance of two distributions on a line, from their quantiles."""
    return float(np.abs(p - q).mean())
