"""The waiting requests, in the order of a policy."""

from __future__ import annotations

import heapq

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.faults import rank_of, read

DISCARDED_MAX = 1000
"""Maximum number of discarded requests that the heap holds in excess of the waiting ones."""

_Item = tuple[int, float, int, QueuedRequest]


class RequestQueue:
    """A heap that is rebuilt when the policy's `version` changes.

    Methods that rank raise PluginError when the policy fails or returns an invalid rank.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._version = policy, 0
        """`_version`: the policy's version for which the heap is ranked."""
        self._heap: list[_Item] = []
        self._waiting: set[int] = set()
        """Ids of the waiting requests; the heap may hold discarded ones, too."""

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: QueuedRequest) -> None:
        """Add a `request` that the policy knows, and that was never discarded."""
        if not self._heap:
            self._version = read(self._policy, "version")
        heapq.heappush(self._heap, self._item(request))
        self._waiting.add(request.id)

    def place(self) -> tuple[int, float, int]:
        """The rank, arrival and id of the next request: its place among those of other queues."""
        self.first()
        return self._heap[0][:3]

    def first(self) -> QueuedRequest:
        """The next request."""
        if self._version != (version := read(self._policy, "version")):
            self._heap = [self._item(request) for request in self.requests()]
            heapq.heapify(self._heap)
            self._version = version
        while self._heap[0][2] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][3]

    def pop(self) -> QueuedRequest:
        """Remove and return the next request."""
        first = self.first()
        heapq.heappop(self._heap)
        self._waiting.remove(first.id)
        return first

    def discard(self, request_id: int) -> None:
        """Remove a request, if it waits here."""
        self._waiting.discard(request_id)
        if len(self._heap) > 2 * len(self._waiting) + DISCARDED_MAX:
            self._heap = [item for item in self._heap if item[2] in self._waiting]
            heapq.heapify(self._heap)

    def requests(self) -> list[QueuedRequest]:
        """All waiting requests, in no order."""
        return [item[3] for item in self._heap if item[2] in self._waiting]

    def clear(self) -> None:
        """Remove all requests."""
        self._heap.clear()
        self._waiting.clear()

    def _item(self, request: QueuedRequest) -> _Item:
        return rank_of(self._policy, request), request.arrived_s, request.id, request
