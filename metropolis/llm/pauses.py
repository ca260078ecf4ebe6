"""Pauses before retries: exponential backoff with jitter."""

from __future__ import annotations

import asyncio
import random

FIRST_S = 0.5
"""The pause after the first failure, without jitter; later ones double."""


class Pauses:
    """The pauses of all calls of one client; `seed` seeds the jitter, which affects no answer."""

    def __init__(self, seed: int) -> None:
        self._jitter = random.Random(seed)
        self.waiting = 0
        """Number of calls in a pause."""

    async def wait(self, failed: int, pause_max_s: float) -> None:
        """Pause after the given number of failures, at most `pause_max_s`."""
        pause_s = min(pause_max_s, FIRST_S * 2.0 ** min(failed - 1, 30))
        self.waiting += 1
        try:
            await asyncio.sleep(pause_s * self._jitter.uniform(0.5, 1.0))
        finally:
            self.waiting -= 1
