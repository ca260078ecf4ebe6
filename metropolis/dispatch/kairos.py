"""Kairos' packing: a request is placed where its memory fits for its expected duration (§6)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np
import numpy.typing as npt

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.kairos.latency import Latencies

SLOT_S = 0.5
SLOTS = 1024
"""Number of slots that are planned; longer requests are assumed to end there."""
UNKNOWN_S = 10.0
"""Expected latency of an unknown function."""
NEAR = 0.05
"""Peaks that differ by less, as shares of the memory, count as equal: otherwise a burst would go to
one instance, and its prefills would wait for each other there."""

Slots = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Placed:
    request: QueuedRequest
    instance: int
    slot: int
    """The slot in which it was placed."""
    first: int
    """The slot of `needed[0]`."""
    needed: Slots
    """The request's expected KV tokens in each slot, until its expected end."""


class KairosPacking(Dispatcher):
    """Places a request where its expected memory fits until its expected end.

    A request is expected to take its function's mean latency, and its memory to grow as it decodes.
    The future is divided into slots of SLOT_S. A request is deferred if it would exceed the memory
    of every instance in some slot. Of the instances that can take it, the one with the lowest peak,
    as a share of its memory, is chosen; of those with about the same peak, the one that was chosen
    longest ago. A request that lasts longer than expected is then expected to last as long as the
    mean of the longer latencies. An instance that preempted accepts nothing until a request leaves
    it.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._used: Slots = np.zeros((len(fleet), SLOTS), np.int64)
        self._first = 0
        """The number of the slot in column 0 of `_used`."""
        self._latencies: dict[str, Latencies] = defaultdict(Latencies)
        self._placed: dict[int, _Placed] = {}
        self._ends: list[tuple[int, int]] = []
        """Heap of (slot after the expected end, id); the requests may have left."""
        self._full: set[int] = set()
        self._turns: Slots = np.zeros(len(fleet), np.int64)
        """(instances,): the number of the last request that each instance took."""
        self._numbers = count(1)

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        """See Dispatcher."""
        closed = self._full | self.closed
        if len(closed) == len(self.fleet):
            return None
        self._pass(now_s)
        slots = self._slots_left(request.function, 0.0)
        speeds = np.array([each.tokens_per_s for each in self.fleet.instances])
        grown = speeds[:, None] * SLOT_S * np.arange(1, slots + 1)
        needed = request.prompt_tokens + grown.astype(np.int64)
        highest = np.maximum((self._used[:, :slots] + needed).max(axis=1), self._used.max(axis=1))
        shares = highest / [each.capacity_tokens for each in self.fleet.instances]
        shares[list(closed)] = np.inf
        lowest = shares.min()
        tolerance = NEAR if self._used.any() else 0.0  # idle: whichever order calls came in before
        near = shares <= max(lowest, min(lowest + tolerance, 1.0))
        chosen = int(np.where(near, self._turns, np.iinfo(np.int64).max).argmin())
        if shares[chosen] > 1 and self._used[chosen].any():
            return None
        self._turns[chosen] = next(self._numbers)
        self._reserve(_Placed(request, chosen, self._first, self._first, needed[chosen]))
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
        if any(placed.instance == instance for placed in self._placed.values()):
            self._full.add(instance)

    def _slots_left(self, function: str, lasted_s: float) -> int:
        """Slots that a request is expected to take after `lasted_s`; at least one.

        A request that has outlasted all known latencies of its function is expected to take half as
        much time again. A shorter estimate would have to be repeated more often.
        """
        latency_s = self._latencies[function].mean_beyond(lasted_s)
        if latency_s is None:
            latency_s = UNKNOWN_S if lasted_s < UNKNOWN_S else 1.5 * lasted_s
        return min(SLOTS, int((latency_s - lasted_s) / SLOT_S) + 1)

    def _reserve(self, placed: _Placed) -> None:
        """Reserve `placed.needed`, from the current slot on."""
        self._used[placed.instance, : len(placed.needed)] += placed.needed
        self._placed[placed.request.id] = placed
        heappush(self._ends, (placed.first + len(placed.needed), placed.request.id))

    def _free(self, request: QueuedRequest, now_s: float) -> None:
        self._pass(now_s)
        placed = self._placed.pop(request.id)
        left = placed.needed[self._first - placed.first :]
        self._used[placed.instance, : len(left)] -= left
        self._full.discard(placed.instance)

    def _pass(self, now_s: float) -> None:
        """Drop the slots before `now_s`; extend the requests that should have ended by then."""
        over = int(now_s / SLOT_S) - self._first
        if over > 0:
            self._first += over
            self._used = np.roll(self._used, -over, axis=1) if over < SLOTS else self._used * 0
            self._used[:, max(0, SLOTS - over) :] = 0
        while self._ends and self._ends[0][0] <= self._first:
            end, request_id = heappop(self._ends)
            placed = self._placed.get(request_id)
            if placed is not None and placed.first + len(placed.needed) == end:
                self._extend(placed)

    def _extend(self, placed: _Placed) -> None:
        lasted = self._first - placed.slot
        slots = self._slots_left(placed.request.function, lasted * SLOT_S)
        speed = self.fleet.instances[placed.instance].tokens_per_s
        grown = speed * SLOT_S * (lasted + np.arange(1, slots + 1))
        placed.first = self._first
        placed.needed = placed.request.prompt_tokens + grown.astype(np.int64)
        self._reserve(placed)
