"""The waiting requests, in the order of a policy."""

from __future__ import annotations

import heapq
from collections.abc import Container

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.faults import call, rank_of

_Item = tuple[int, float, int, QueuedRequest]


class RequestQueue:
    """A heap that is rebuilt when the policy's `version` changes.

    Methods that rank raise PluginError when the policy fails or returns an invalid rank.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._version = policy, policy.version
        self._heap: list[_Item] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, request: QueuedRequest) -> None:
        """Add a new `request`, and notify the policy."""
        call(self._policy.arrived, request)
        self.push_back(request)

    def push_back(self, request: QueuedRequest) -> None:
        """Add a `request` that the policy has seen."""
        heapq.heappush(self._heap, self._item(request))

    def first(self) -> QueuedRequest:
        """The next request."""
        if self._version != self._policy.version:
            self._version = self._policy.version
            self._heap = [self._item(item[3]) for item in self._heap]
            heapq.heapify(self._heap)
        return self._heap[0][3]

    def pop(self) -> QueuedRequest:
        """Remove and return the next request."""
        first = self.first()
        heapq.heappop(self._heap)
        return first

    def keep(self, ids: Container[int]) -> None:
        """Remove all requests but those with these ids."""
        self._heap = [item for item in self._heap if item[2] in ids]
        heapq.heapify(self._heap)

    def _item(self, request: QueuedRequest) -> _Item:
        return rank_of(self._policy, request), request.arrived_s, request.id, request
