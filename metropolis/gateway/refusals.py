"""Refusals before a request is parsed: counted by reason, and logged at a limited rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from math import inf

EVERY_S = 10.0
"""Minimum time between two log lines for the same reason."""


class Refusals:
    """Adds to `counts` by reason; `log` receives lines."""

    def __init__(
        self,
        counts: Counter[str],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts, self._log, self._clock = counts, log, clock
        self._logged_s: dict[str, float] = {}
        """Time of the last line by reason; `_logged`: the count at that time."""
        self._logged: Counter[str] = Counter()

    def add(self, reason: str, sentence: str) -> None:
        """Count one; `sentence` may contain nothing that a client sent."""
        self._counts[reason] += 1
        now_s = self._clock()
        if now_s - self._logged_s.get(reason, -inf) < EVERY_S:
            return
        more = self._counts[reason] - self._logged[reason] - 1
        self._logged_s[reason], self._logged[reason] = now_s, self._counts[reason]
        self._log(sentence + (f" ({more} more since the last such line)" if more else ""))
