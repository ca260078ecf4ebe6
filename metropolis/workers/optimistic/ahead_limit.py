"""How far agents run ahead: less far while nearly all executions turn out wrong."""

from __future__ import annotations

AHEAD_MAX = 100
"""Maximum steps above the floor at which agents run ahead: those far ahead delay no other agent."""
AHEAD_MIN = 2
SAMPLE = 1000
"""The number of executions after which the limit is reviewed."""
WRONG_HIGH, WRONG_LOW = 0.97, 0.8
"""Shares of wrong executions above which the limit is halved, and below which it is doubled.

SmallVille has 0.57 on average; in a crowd of random walkers nearly all are wrong.
"""


class AheadLimit:
    """The number of steps above the floor at which agents may run ahead."""

    def __init__(self) -> None:
        self.steps = AHEAD_MAX
        self._began = self._wrong = 0
        """Executions since the last review, and those of them and of earlier ones found wrong."""

    def began(self) -> None:
        """An execution begins."""
        self._began += 1
        if self._began < SAMPLE:
            return
        share, self._began, self._wrong = self._wrong / SAMPLE, 0, 0
        if share > WRONG_HIGH:
            self.steps = max(AHEAD_MIN, self.steps // 2)
        elif share < WRONG_LOW:
            self.steps = min(AHEAD_MAX, 2 * self.steps)

    def was_wrong(self) -> None:
        """An execution was wrong."""
        self._wrong += 1
