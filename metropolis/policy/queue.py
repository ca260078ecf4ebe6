"""The waiting requests, in the order of a policy."""

from __future__ import annotations

import heapq

from metropolis.policy.base import SPECULATIVE_PRIORITY, Policy, QueuedRequest
from metropolis.policy.faults import rank_of, read

DISCARDED_MAX = 1000
"""Maximum number of discarded requests that the heap holds in excess of the waiting ones."""

_Item = tuple[int, float, int, QueuedRequest]


def priority_of(policy: Policy, request: QueuedRequest) -> int:
    """The rank of `request`; that of a speculative one is above every other. Raises PluginError."""
    rank = rank_of(policy, request)
    return rank + SPECULATIVE_PRIORITY if request.speculative else rank


def order_of(policy: Policy, request: QueuedRequest) -> tuple[int, float, int]:
    """The priority of `request`, and what breaks ties; smaller runs first. Raises PluginError."""
    return priority_of(policy, request), request.arrived_s, request.id


class RequestQueue:
    """A heap that is rebuilt when the policy's `version` changes.

    Methods that rank raise PluginError when the policy fails or returns an invalid rank.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._version = policy, 0
        """`_version`: the policy's version for which the heap is ranked."""
        self._heap: list[_Item] = []
        self._waiting: dict[int, _Item] = {}
        """The item of each waiting request, by id; the heap may hold discarded items, too."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def push(self, request: QueuedRequest) -> None:
        """Add a `request` that the policy knows; it replaces one that waits here with its id."""
        if not self._heap:
            self._version = read(self._policy, "version")
        item = self._waiting[request.id] = self._item(request)
        heapq.heappush(self._heap, item)

    def place(self) -> tuple[int, float, int]:
        """Priority, arrival and id of the next request: its place among those of other queues."""
        self.first()
        return self._heap[0][:3]

    def first(self) -> QueuedRequest:
        """The next request."""
        if self._version != (version := read(self._policy, "version")):
            heap = [self._item(request) for request in self.requests()]
            self._waiting = {item[2]: item for item in heap}
            self._heap = heap
            heapq.heapify(self._heap)
            self._version = version
        while not self._is_waiting(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][3]

    def pop(self) -> QueuedRequest:
        """Remove and return the next request."""
        first = self.first()
        heapq.heappop(self._heap)
        del self._waiting[first.id]
        return first

    def discard(self, request_id: int) -> None:
        """Remove a request, if it waits here."""
        self._waiting.pop(request_id, None)
        if len(self._heap) > 2 * len(self._waiting) + DISCARDED_MAX:
            self._heap = [item for item in self._heap if self._is_waiting(item)]
            heapq.heapify(self._heap)

    def requests(self) -> list[QueuedRequest]:
        """All waiting requests, in no order."""
        return [item[3] for item in self._heap if self._is_waiting(item)]

    def _is_waiting(self, item: _Item) -> bool:
        return self._waiting.get(item[2]) is item

    def _item(self, request: QueuedRequest) -> _Item:
        return *order_of(self._policy, request), request
