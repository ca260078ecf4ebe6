"""Policies in a row: each orders what is equal to those before it."""

from __future__ import annotations

from collections.abc import Sequence

from metropolis.policy.base import RANK_BITS, Execution, Policy, QueuedRequest
from metropolis.policy.faults import call, due_s_of, rank_of
from metropolis.types import MetropolisError


class Combined(Policy):
    """The first decides; the second where the first's ranks are equal, and so on.

    For simulations: steps first, so that nobody far ahead keeps those at the floor waiting, then
    what is learned of functions. The first gets the bits that the others leave; ranks beyond them
    are all the same. Raises MetropolisError when they leave none.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = policies
        left = RANK_BITS - sum(policy.rank_bits for policy in policies[1:])
        if left < 1:
            widest = max(policies[1:], key=lambda policy: policy.rank_bits)
            raise MetropolisError(
                f"{type(widest).__name__} takes {widest.rank_bits} of a rank's {RANK_BITS} bits, "
                "which leaves too few to those before it; it should stand first, or say that it "
                "needs fewer (rank_bits)"
            )
        self._first_max = (1 << left) - 1
        self.preempts = any(policy.preempts for policy in policies)

    @property
    def due_s(self) -> float:
        """When the next of them is due."""
        return min(due_s_of(policy) for policy in self._policies)

    def rank(self, request: QueuedRequest) -> int:
        """See Policy."""
        rank = min(rank_of(self._policies[0], request), self._first_max)
        for policy in self._policies[1:]:
            rank = rank << policy.rank_bits | rank_of(policy, request)
        return rank

    def arrived(self, request: QueuedRequest) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.arrived, request)
        self._follow()

    def started(self, request: QueuedRequest, now_s: float) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.started, request, now_s)
        self._follow()

    def preempted(self, request: QueuedRequest, now_s: float) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.preempted, request, now_s)
        self._follow()

    def passed(self, now_s: float) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.passed, now_s)
        self._follow()

    def cancelled(self, request: QueuedRequest) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.cancelled, request)
        self._follow()

    def completed(self, execution: Execution) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.completed, execution)
        self._follow()

    def program_ended(self, program: str) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.program_ended, program)
        self._follow()

    def function_ended(self, function: str) -> None:
        """Tell all."""
        for policy in self._policies:
            call(policy.function_ended, function)
        self._follow()

    def _follow(self) -> None:
        self.version = sum(policy.version for policy in self._policies)
        self.running_version = sum(policy.running_version for policy in self._policies)
