"""The requests that wait, in the order of a policy."""

from __future__ import annotations

import heapq
from collections.abc import Container

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.faults import call, rank_of

_Item = tuple[int, float, int, QueuedRequest]


class RequestQueue:
    """A heap that is made anew when the policy has changed its mind.

    Whatever ranks raises PluginError when the policy fails or returns no rank.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._version = policy, policy.version
        self._heap: list[_Item] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, request: QueuedRequest) -> None:
        """`request` has arrived and waits; the policy is told."""
        call(self._policy.arrived, request)
        self.push_back(request)

    def push_back(self, request: QueuedRequest) -> None:
        """`request`, of which the policy knows, waits (again)."""
        heapq.heappush(self._heap, self._item(request))

    def first(self) -> QueuedRequest:
        """Who goes next."""
        if self._version != self._policy.version:
            self._version = self._policy.version
            self._heap = [self._item(item[3]) for item in self._heap]
            heapq.heapify(self._heap)
        return self._heap[0][3]

    def pop(self) -> QueuedRequest:
        """Who goes next, who waits no more."""
        first = self.first()
        heapq.heappop(self._heap)
        return first

    def keep(self, ids: Container[int]) -> None:
        """Forget all but those."""
        self._heap = [item for item in self._heap if item[2] in ids]
        heapq.heapify(self._heap)

    def _item(self, request: QueuedRequest) -> _Item:
        return rank_of(self._policy, request), request.arrived_s, request.id, request
