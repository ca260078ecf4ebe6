"""The requests that wait to be placed, and the dispatcher that places them."""

from __future__ import annotations

from collections.abc import Set

from metropolis.dispatch.base import Dispatcher
from metropolis.dispatch.faults import placed_by
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.queue import RequestQueue


class Placement:
    """One queue per set of `instances` that may serve the same requests; all are closed at first.

    Methods raise PluginError when the policy or the dispatcher fails.
    """

    def __init__(self, policy: Policy, dispatcher: Dispatcher, instances: frozenset[int]) -> None:
        self._policy, self._dispatcher, self._all = policy, dispatcher, instances
        self._queues: dict[frozenset[int], RequestQueue] = {}
        """By the instances that may serve the requests."""
        self._closed = set(instances)
        """The dispatcher's `closed`."""
        dispatcher.closed = self._closed

    def queue_of(self, allowed: frozenset[int]) -> RequestQueue:
        """The queue of the requests that only `allowed` instances may serve."""
        if allowed not in self._queues:  # the sets may change for ever: none is kept in vain
            self._queues = {key: queue for key, queue in self._queues.items() if queue}
            self._queues[allowed] = RequestQueue(self._policy)
        return self._queues[allowed]

    def set_open(self, instance: int, is_open: bool) -> None:
        """Open or close `instance` to the dispatcher."""
        if is_open:
            self._closed.discard(instance)
        else:
            self._closed.add(instance)

    def first(self, skipped: Set[frozenset[int]]) -> tuple[frozenset[int], QueuedRequest] | None:
        """The first request in the policy's order, with the instances that may serve it.

        Excludes the requests of `skipped` queues. None: no other request waits.
        """
        waiting = [k for k, queue in self._queues.items() if queue and k not in skipped]
        if len(waiting) > 1:
            waiting.sort(key=lambda allowed: self._queues[allowed].place())
        return (waiting[0], self._queues[waiting[0]].first()) if waiting else None

    def choose(self, request: QueuedRequest, allowed: frozenset[int], now_s: float) -> int | None:
        """The dispatcher's choice of the `allowed` instances that are open; None: none now."""
        if allowed <= self._closed:
            return None
        if allowed is self._all:
            return placed_by(self._dispatcher, request, now_s)
        self._dispatcher.closed = self._closed | (self._all - allowed)
        try:
            return placed_by(self._dispatcher, request, now_s)
        finally:
            self._dispatcher.closed = self._closed
