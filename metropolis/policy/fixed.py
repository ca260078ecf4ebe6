"""Policies that know a request's rank when it arrives."""

from __future__ import annotations

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.types import MetropolisError


class Fcfs(Policy):
    """First come, first served, at every stage anew (Parrot, as Kairos §7.1 has it)."""

    rank_bits = 1

    def rank(self, request: QueuedRequest) -> int:  # noqa: ARG002
        """All the same."""
        return 0


class StepFirst(Policy):
    """The lowest step first (AI Metropolis §3.5); `bucket` steps in a row are equal.

    Raises MetropolisError when a bucket holds no step.
    """

    def __init__(self, bucket: int = 1) -> None:
        if bucket < 1:
            raise MetropolisError(f"bucket is {bucket}; it should be at least 1")
        self._bucket = bucket

    def rank(self, request: QueuedRequest) -> int:
        """Its bucket of steps."""
        return request.step // self._bucket


class Topology(Policy):
    """The fewest remaining stages first (Ayo, as Kairos §7.1 has it)."""

    rank_bits = 16

    def rank(self, request: QueuedRequest) -> int:
        """Its remaining stages; raises MetropolisError when nobody has said."""
        if request.stages_left is None:
            raise MetropolisError(
                f"program {request.program!r}, function {request.function!r}: topology needs to "
                "know how many stages are left, which only generated programs and the gateway's "
                "header X-Metropolis-Stages-Left tell"
            )
        return min(request.stages_left, (1 << self.rank_bits) - 1)
