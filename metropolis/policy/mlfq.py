"""The multilevel feedback queue per call, unaware of programs: a baseline (Agentix §6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from metropolis.policy.multilevel_queue import QUANTA_S, Call, Multilevel
from metropolis.types import MetropolisError


class Mlfq(Multilevel):
    """A request starts in the first level, and returns to it after `promote_s` of waiting.

    Raises MetropolisError when a quantum or `promote_s` is not positive.
    """

    def __init__(self, quanta_s: Sequence[float] = QUANTA_S, promote_s: float = inf) -> None:
        super().__init__(quanta_s)
        if not promote_s > 0:
            raise MetropolisError(f"promote_s is {promote_s}; it should be above 0")
        self._promote_s = promote_s

    def program_times_s(self, program: str) -> tuple[float, float]:  # noqa: ARG002
        """Zero: earlier requests of the program do not count."""
        return 0.0, 0.0

    def promotion_s(self, call: Call) -> float:
        """The time at which the call's accumulated waiting reaches `promote_s`."""
        return call.since_s + self._promote_s - call.waited_s if call.level else inf
