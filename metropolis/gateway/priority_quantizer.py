"""Maps priorities to a few levels, for engines that keep a metric per priority."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from metropolis.policy.base import SPECULATIVE_PRIORITY

LAST = 10
"""The level of speculative requests. SGLang by default preempts a running request for one that is
11 levels before it: here never."""
REMEMBERED = 512


class Priorities:
    """A priority's level is its quantile among the most recent ones; speculative requests do not
    count."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def level(self, priority: int) -> int:
        """Return a level from 0, which goes first, to LAST, which only speculative requests get."""
        if priority >= SPECULATIVE_PRIORITY:
            return LAST
        self._latest.append(priority)
        insort(self._sorted, priority)
        if len(self._latest) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        return bisect_left(self._sorted, priority) * LAST // len(self._sorted)
