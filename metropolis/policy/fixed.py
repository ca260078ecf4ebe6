"""Policies that know a request's rank when it arrives."""

from __future__ import annotations

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.types import MetropolisError


class Fcfs(Policy):
    """First come, first served, at every stage anew (Parrot, as Kairos §7.1 has it)."""

    def rank(self, request: QueuedRequest) -> int:  # noqa: ARG002
        """All the same."""
        return 0


class StepFirst(Policy):
    """The lowest step first (AI Metropolis §3.5)."""

    def rank(self, request: QueuedRequest) -> int:
        """Its step."""
        return request.step


class Topology(Policy):
    """The fewest remaining stages first (Ayo, as Kairos §7.1 has it)."""

    def rank(self, request: QueuedRequest) -> int:
        """Its remaining stages; raises MetropolisError when nobody has said."""
        if request.stages_left is None:
            raise MetropolisError(
                f"program {request.program!r}, function {request.function!r}: topology needs to "
                "know how many stages are left"
            )
        return request.stages_left
