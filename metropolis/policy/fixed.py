"""Policies whose ranks are fixed at arrival."""

from __future__ import annotations

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.types import MetropolisError


class Fcfs(Policy):
    """First come, first served, per stage (Parrot, as described in Kairos §7.1)."""

    rank_bits = 1

    def rank(self, request: QueuedRequest) -> int:  # noqa: ARG002
        """Return 0 for all requests, so that they run in the order of arrival."""
        return 0


class StepFirst(Policy):
    """The lowest step first (AI Metropolis §3.5); `bucket` consecutive steps rank equal.

    Raises MetropolisError when `bucket` is below 1.
    """

    def __init__(self, bucket: int = 1) -> None:
        if bucket < 1:
            raise MetropolisError(f"bucket is {bucket}; it should be at least 1")
        self._bucket = bucket

    def rank(self, request: QueuedRequest) -> int:
        """The bucket of the request's step."""
        return request.step // self._bucket


class Topology(Policy):
    """The fewest remaining stages first (Ayo, as described in Kairos §7.1)."""

    rank_bits = 16

    def rank(self, request: QueuedRequest) -> int:
        """The remaining stages; raises MetropolisError when they are unknown."""
        if request.stages_left is None:
            raise MetropolisError(
                f"program {request.program!r}, function {request.function!r}: topology needs to "
                "know how many stages are left; use generated programs, or the gateway's header "
                "X-Metropolis-Stages-Left"
            )
        return min(request.stages_left, (1 << self.rank_bits) - 1)
