"""A chain of policies: each breaks the ties of those before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Concatenate

from metropolis.policy.base import RANK_BITS, Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import (
    P,
    call,
    due_s_of,
    rank_bits_of,
    rank_of,
    read,
    reranked_by,
    version_of,
    versions_of,
)
from metropolis.types import MetropolisError

CHANGES_MAX = 1000
"""Number of the latest changes of versions that are kept."""


class Combined(Policy):
    """The first policy decides; the second breaks its ties, and so on.

    In simulations the step comes first, so that agents far ahead do not delay those at the floor,
    then a policy that learns. The first policy gets the bits that the others leave; its larger
    ranks are clamped. Raises MetropolisError when no bits are left.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = policies
        left = RANK_BITS - sum(map(rank_bits_of, policies[1:]))
        if left < 1:
            number, widest = max(enumerate(policies[1:], 2), key=lambda one: rank_bits_of(one[1]))
            raise MetropolisError(
                f"policy {number} ({type(widest).__name__}) takes {widest.rank_bits} of a rank's "
                f"{RANK_BITS} bits, which leaves too few for the policies before it; put it first, "
                "or lower its rank_bits"
            )
        self._first_max = (1 << left) - 1
        self.preempts = any(read(policy, "preempts") for policy in policies)
        self._versions: dict[int, list[int]] = {}
        """The sum of both versions of each policy, by that of this one, the earliest first."""
        self._follow()

    @property
    def due_s(self) -> float:
        """The earliest `due_s` of all policies."""
        return min(due_s_of(policy) for policy in self._policies)

    def rank(self, request: QueuedRequest) -> int:
        """See Policy."""
        rank = min(rank_of(self._policies[0], request), self._first_max)
        for policy in self._policies[1:]:
            rank = rank << rank_bits_of(policy) | rank_of(policy, request)
        return rank

    def reranked(self, since: int) -> Collection[int] | None:
        """See Policy."""
        if since not in self._versions:
            return None
        found = set[int]()
        for policy, before in zip(self._policies, self._versions[since], strict=True):
            if versions_of(policy) != before:
                ids = reranked_by(policy, before)
                if ids is None:
                    return None
                found.update(ids)
        return found

    def arrived(self, request: QueuedRequest) -> None:
        """See Policy."""
        self._tell(Policy.arrived, request)

    def started(self, request: QueuedRequest, now_s: float) -> None:
        """See Policy."""
        self._tell(Policy.started, request, now_s)

    def preempted(self, request: QueuedRequest, now_s: float) -> None:
        """See Policy."""
        self._tell(Policy.preempted, request, now_s)

    def promoted(self, request: QueuedRequest) -> None:
        """See Policy."""
        self._tell(Policy.promoted, request)

    def passed(self, now_s: float) -> None:
        """See Policy."""
        self._tell(Policy.passed, now_s)

    def cancelled(self, request: QueuedRequest) -> None:
        """See Policy."""
        self._tell(Policy.cancelled, request)

    def completed(self, served: ServedRequest) -> None:
        """See Policy."""
        self._tell(Policy.completed, served)

    def program_ended(self, program: str) -> None:
        """See Policy."""
        self._tell(Policy.program_ended, program)

    def function_ended(self, function: str) -> None:
        """See Policy."""
        self._tell(Policy.function_ended, function)

    def _tell(
        self, event: Callable[Concatenate[Policy, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Tell all policies of an event."""
        for policy in self._policies:
            call(event, policy, *args, **kwargs)
        self._follow()

    def _follow(self) -> None:
        self.version = sum(version_of(policy, "version") for policy in self._policies)
        running = (version_of(policy, "running_version") for policy in self._policies)
        self.running_version = sum(running)
        self._versions[versions_of(self)] = [versions_of(policy) for policy in self._policies]
        if len(self._versions) > CHANGES_MAX:
            del self._versions[next(iter(self._versions))]
