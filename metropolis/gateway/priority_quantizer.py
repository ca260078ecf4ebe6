"""Maps ranks to a few priorities, for engines that keep a metric per priority."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

PRIORITIES = 10
"""Differences stay below 11, at which SGLang by default preempts a running request."""
REMEMBERED = 512


class Priorities:
    """A rank's priority is its quantile among the most recent ranks."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def priority(self, rank: int) -> int:
        """Return a priority from 0, which goes first, to PRIORITIES - 1."""
        self._latest.append(rank)
        insort(self._sorted, rank)
        if len(self._latest) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        return bisect_left(self._sorted, rank) * PRIORITIES // len(self._sorted)
