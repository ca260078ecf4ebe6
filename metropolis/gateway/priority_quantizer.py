"""Ranks as a few priorities, for engines that keep a metric for every priority they have seen."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

PRIORITIES = 10
"""Fewer apart than the 11 that make SGLang put a running request back, unless told otherwise."""
REMEMBERED = 512


class Priorities:
    """A rank's priority is its place among the ranks that came last."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def priority(self, rank: int) -> int:
        """From 0, which goes first, to PRIORITIES - 1."""
        self._latest.append(rank)
        insort(self._sorted, rank)
        if len(self._latest) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        return bisect_left(self._sorted, rank) * PRIORITIES // len(self._sorted)
