"""Kairos' packing: a request is placed where its memory fits for its expected duration (§6)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.kairos.latency import Latencies

SLOT_S = 0.5
SLOTS = 1024
"""Length of the planned future; longer requests are assumed to end there."""
UNKNOWN_S = 10.0
"""Expected latency of an unknown function."""

Slots = npt.NDArray[np.int64]


class KairosPacking(Dispatcher):
    """Expects a request to take its function's most frequent latency, and to grow as it decodes.

    The future is divided into slots of SLOT_S. A request is deferred when it would exceed the
    memory of every instance in some slot. Of the instances that can take it, the one whose
    peak is the lowest share of its memory does. An instance that preempted accepts nothing until
    a request leaves it.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._used: Slots = np.zeros((len(fleet), SLOTS), np.int64)
        self._first = 0
        """The slot at column 0."""
        self._latencies: dict[str, Latencies] = defaultdict(Latencies)
        self._placed: dict[int, tuple[int, int, Slots]] = {}
        self._full: set[int] = set()

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """See Dispatcher."""
        closed = self._full | self.closed
        if len(closed) == len(self.fleet):
            return None
        self._pass(now_s)
        known = self._latencies[request.function].densest_s
        lasts_s = UNKNOWN_S if known is None else known
        slots = min(SLOTS, int(lasts_s / SLOT_S) + 1)
        speeds = np.array([each.tokens_per_s for each in self.fleet.instances])
        grown = speeds[:, None] * SLOT_S * np.arange(1, slots + 1)
        needed = request.prompt_tokens + grown.astype(np.int64)
        highest = np.maximum((self._used[:, :slots] + needed).max(axis=1), self._used.max(axis=1))
        shares = highest / [each.capacity_tokens for each in self.fleet.instances]
        shares[list(closed)] = np.inf
        chosen = int(shares.argmin())
        if shares[chosen] > 1 and self._used[chosen].any():
            return None
        self._used[chosen, :slots] += needed[chosen]
        self._placed[request.id] = chosen, self._first, needed[chosen]
        return chosen

    def completed(self, served: ServedRequest) -> None:
        """Learn the latency, and free the memory reserved from now on."""
        self._latencies[served.request.function].add(served.latency_s)
        self._free(served.request, served.completed_s)

    def cancelled(self, request: QueuedRequest, instance: int, now_s: float) -> None:  # noqa: ARG002
        """Free the memory reserved from now on."""
        self._free(request, now_s)

    def function_ended(self, function: str) -> None:
        """See Dispatcher."""
        self._latencies.pop(function, None)

    def preempted(self, instance: int, now_s: float) -> None:  # noqa: ARG002
        """Stop placing there, unless the instance has no request whose end would reopen it."""
        if any(placed == instance for placed, _, _ in self._placed.values()):
            self._full.add(instance)

    def _free(self, request: QueuedRequest, now_s: float) -> None:
        self._pass(now_s)
        instance, first, needed = self._placed.pop(request.id)
        left = needed[self._first - first :]
        self._used[instance, : len(left)] -= left
        self._full.discard(instance)

    def _pass(self, now_s: float) -> None:
        """Drop the slots before `now_s`."""
        over = int(now_s / SLOT_S) - self._first
        if over > 0:
            self._first += over
            self._used = np.roll(self._used, -over, axis=1) if over < SLOTS else self._used * 0
            self._used[:, max(0, SLOTS - over) :] = 0
