"""Ranks as a few levels, for engines that keep a metric for every priority they have seen."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

LEVELS = 10
"""Fewer apart than the 11 that make SGLang put a running request back, unless told otherwise."""
REMEMBERED = 512


class Levels:
    """A rank's level is its place among the ranks that came last."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def level(self, rank: int) -> int:
        """From 0, which goes first, to LEVELS - 1."""
        self._latest.append(rank)
        insort(self._sorted, rank)
        if len(self._latest) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        return bisect_left(self._sorted, rank) * LEVELS // len(self._sorted)
