"""The waiting requests, in the order of a policy."""

from __future__ import annotations

import heapq

from metropolis.policy.base import SPECULATIVE_PRIORITY, Policy, QueuedRequest
from metropolis.policy.faults import rank_of, reranked_by, version_of, versions_of

DISCARDED_MAX = 1000
"""Maximum number of discarded requests that the heap holds in excess of the waiting ones."""

_Place = tuple[int, float, int]
"""Priority, arrival and id."""


def priority_of(policy: Policy, request: QueuedRequest) -> int:
    """The rank of `request`; that of a speculative one is above every other. Raises PluginError."""
    rank = rank_of(policy, request)
    return rank + SPECULATIVE_PRIORITY if request.speculative else rank


def order_of(policy: Policy, request: QueuedRequest) -> _Place:
    """The priority of `request`, and what breaks ties; smaller runs first. Raises PluginError."""
    return priority_of(policy, request), request.arrived_s, request.id


class RequestQueue:
    """A heap that ranks again, when the policy's `version` changes, what has been reranked.

    Methods that rank raise PluginError when the policy fails or returns an invalid rank.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._version, self._versions = policy, 0, 0
        """The policy's version for which the heap is ranked, and the sum of both versions then."""
        self._heap: list[_Place] = []
        """Places, also of discarded requests, whose prompts would take memory if it held them."""
        self._waiting: dict[int, tuple[_Place, QueuedRequest]] = {}
        """The waiting requests and their places, by id."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def push(self, request: QueuedRequest) -> None:
        """Add a `request` that the policy knows; it replaces one that waits here with its id."""
        if not self._heap:
            self._follow()
        place = order_of(self._policy, request)
        self._waiting[request.id] = place, request
        heapq.heappush(self._heap, place)

    def place(self) -> _Place:
        """Priority, arrival and id of the next request: its place among those of other queues."""
        self.first()
        return self._heap[0]

    def first(self) -> QueuedRequest:
        """The next request."""
        if self._version != version_of(self._policy, "version"):
            ids = reranked_by(self._policy, self._versions)
            if ids is None or self._is_sparse:
                requests = self.requests()
                heap = [order_of(self._policy, request) for request in requests]
                self._waiting = {r.id: (place, r) for place, r in zip(heap, requests, strict=True)}
                self._heap = heap
                heapq.heapify(self._heap)
            else:
                for id_ in self._waiting.keys() & ids:
                    self.push(self._waiting[id_][1])
            self._follow()
        while not self._is_waiting(self._heap[0]):
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][2]][1]

    def pop(self) -> QueuedRequest:
        """Remove and return the next request."""
        first = self.first()
        heapq.heappop(self._heap)
        del self._waiting[first.id]
        return first

    def discard(self, request_id: int) -> None:
        """Remove a request, if it waits here."""
        self._waiting.pop(request_id, None)
        if self._is_sparse:
            self._heap = [place for place in self._heap if self._is_waiting(place)]
            heapq.heapify(self._heap)

    def requests(self) -> list[QueuedRequest]:
        """All waiting requests, in no order."""
        return [self._waiting[place[2]][1] for place in self._heap if self._is_waiting(place)]

    @property
    def _is_sparse(self) -> bool:
        return len(self._heap) > 2 * len(self._waiting) + DISCARDED_MAX

    def _follow(self) -> None:
        self._version, self._versions = (
            version_of(self._policy, "version"),
            versions_of(self._policy),
        )

    def _is_waiting(self, place: _Place) -> bool:
        waiting = self._waiting.get(place[2])
        return waiting is not None and waiting[0] is place
