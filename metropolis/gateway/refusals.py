"""Refusals before a request is parsed: counted by reason, and logged at a limited rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from math import inf

EVERY_S = 10.0
"""Minimum time between two log lines for the same reason."""


class Refusals:
    """Adds to `counts` by reason; `said` receives log lines."""

    def __init__(
        self,
        counts: Counter[str],
        said: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts, self._said, self._clock = counts, said, clock
        self._told_s: dict[str, float] = {}
        self._told: Counter[str] = Counter()

    def add(self, reason: str, sentence: str) -> None:
        """Count one; `sentence` may contain nothing that a client sent."""
        self._counts[reason] += 1
        now_s = self._clock()
        if now_s - self._told_s.get(reason, -inf) < EVERY_S:
            return
        more = self._counts[reason] - self._told[reason] - 1
        self._told_s[reason], self._told[reason] = now_s, self._counts[reason]
        self._said(sentence + (f" ({more} more since the last such line)" if more else ""))
