"""Dispatchers that do not inspect the request."""

from __future__ import annotations

from itertools import count

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.policy.base import QueuedRequest, ServedRequest


class RoundRobin(Dispatcher):
    """Each open instance in turn."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._count = count()

    def place(self, request: QueuedRequest, now_s: float) -> int | None:  # noqa: ARG002
        """See Dispatcher."""
        if len(self.closed) == len(self.fleet):
            return None
        return next(
            turn % len(self.fleet)
            for turn in self._count
            if turn % len(self.fleet) not in self.closed
        )


class LeastLoaded(Dispatcher):
    """The instance with the fewest outstanding requests."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._in_flight = [0] * len(fleet)

    def place(self, request: QueuedRequest, now_s: float) -> int | None:  # noqa: ARG002
        """See Dispatcher."""
        if len(self.closed) == len(self.fleet):
            return None
        instances = (each for each in range(len(self.fleet)) if each not in self.closed)
        chosen = min(instances, key=self._in_flight.__getitem__)
        self._in_flight[chosen] += 1
        return chosen

    def completed(self, served: ServedRequest) -> None:
        """See Dispatcher."""
        self._in_flight[served.instance] -= 1

    def cancelled(self, request: QueuedRequest, instance: int, now_s: float) -> None:  # noqa: ARG002
        """See Dispatcher."""
        self._in_flight[instance] -= 1
