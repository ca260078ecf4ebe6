"""Agentix' load balancer: long prompts go to their program's instance (§4.3)."""

from __future__ import annotations

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import QueuedRequest
from metropolis.types import MetropolisError

THRESHOLD_TOKENS = 2048
"""Shorter prompts are mostly text that all programs share and every instance caches (§4.3)."""


class ProgramAffinity(LeastLoaded):
    """Algorithm 2: short prompts go to the least loaded instance, long ones to their program's.

    A program's instance is that of its first long prompt, for each model that it calls. If it is
    closed, the program moves to another one and stays there. Raises MetropolisError when the
    threshold is negative.
    """

    def __init__(self, fleet: Fleet, threshold_tokens: int = THRESHOLD_TOKENS) -> None:
        super().__init__(fleet)
        if threshold_tokens < 0:
            raise MetropolisError(
                f"threshold_tokens is {threshold_tokens}; it should be at least 0"
            )
        self._threshold_tokens = threshold_tokens
        self._homes: dict[str, dict[str | None, int]] = {}
        """Instance by model, by program, for programs with long prompts."""

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """See Dispatcher."""
        if request.prompt_tokens <= self._threshold_tokens:
            return super().place(request, now_s)
        home = self._homes.get(request.program, {}).get(request.model)
        if home is not None and home not in self.closed:
            self._in_flight[home] += 1
            return home
        placed = super().place(request, now_s)
        if placed is not None:
            self._homes.setdefault(request.program, {})[request.model] = placed
        return placed

    def lost(self, instance: int) -> None:
        """See Dispatcher."""
        for program, homes in self._homes.items():
            left = {model: home for model, home in homes.items() if home != instance}
            self._homes[program] = left

    def program_ended(self, program: str) -> None:
        """See Dispatcher."""
        self._homes.pop(program, None)
