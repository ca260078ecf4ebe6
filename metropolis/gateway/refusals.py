"""What is refused before it becomes a request: counted by reason, and logged now and then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from math import inf

EVERY_S = 10.0
"""Of one reason at most one line in so many seconds."""


class Refusals:
    """Adds to `counts` by reason; `said` is told lines."""

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
        """One more; `sentence` may hold nothing that a client sent."""
        self._counts[reason] += 1
        now_s = self._clock()
        if now_s - self._told_s.get(reason, -inf) < EVERY_S:
            return
        more = self._counts[reason] - self._told[reason] - 1
        self._told_s[reason], self._told[reason] = now_s, self._counts[reason]
        self._said(sentence + (f" ({more} more since the last such line)" if more else ""))
