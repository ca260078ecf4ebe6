"""The policy: functions by remaining latency, requests of one by their program's start (§5)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.kairos.latency import FIRST, WINDOW, Latencies
from metropolis.policy.kairos.priority import distance_from_zero
from metropolis.policy.kairos.workflow import call_graph, remaining_s
from metropolis.types import MetropolisError

_START_BITS, _PLACE_BITS = 32, 13
"""Layout of a rank: the place of the function in the high bits, the program's start in ms since an
epoch in the low bits, which lasts 49 days."""
_START_MAX = (1 << _START_BITS) - 1
_NEW_DAY_S = _START_MAX / 2000
"""Age at which the epoch moves forward; programs that began before it rank equal."""
_DAY_S = 86400.0
PROGRAM_MAX = 1024
"""Executions of a running program after which they are learned from as if it had ended."""
FUNCTIONS_MAX = (1 << _PLACE_BITS) - 2
"""Upper bound: an update costs O(functions²) memory and time. Two places are reserved for unknown
functions."""
TRIALS = FIRST
"""Requests of an unknown function that run first until their programs end, to learn its latency."""
SHARE = 16
"""The order is recomputed after more updates of distributions than 1 / SHARE of its functions."""


class Kairos(Policy):
    """Learns the remaining latency of each function from completed programs.

    The first few requests of an unknown function run before all others, to learn its latency soon;
    the rest run last, as the many first stages of a new application would otherwise delay all
    others under load, long before its first program ends. The paper leaves this open. A speculative
    request is not among the first before it is needed.

    `window`: the number of latest executions that form a function's distribution. Raises
    MetropolisError when it is below FIRST.
    """

    rank_bits = _START_BITS + _PLACE_BITS

    def __init__(self, window: int = WINDOW) -> None:
        if window < FIRST:
            raise MetropolisError(f"window is {window}; it should be at least {FIRST}")
        self._programs: dict[str, list[ServedRequest]] = defaultdict(list)
        self._remaining: dict[str, Latencies] = defaultdict(lambda: Latencies(window))
        self._updated = 0
        """Number of updates of distributions since the order was computed."""
        self._places: dict[str, int] = {}
        """Known function -> its place in the order, from 1."""
        self._trials: dict[str, set[int]] = {}
        """Unknown function -> ids of its requests that run first."""
        self._first_s = 0.0
        """The epoch: the arrival of the first program, or a later time."""
        self._has_begun = False

    def rank(self, request: QueuedRequest) -> int:
        """See Policy."""
        place = self._places.get(request.function)
        if place is None:
            on_trial = request.id in self._trials.get(request.function, ())
            place = 0 if on_trial else len(self._places) + 1
        start_ms = int((request.program_arrived_s - self._first_s) * 1000)
        return place << _START_BITS | min(max(start_ms, 0), _START_MAX)

    def arrived(self, request: QueuedRequest) -> None:
        """See Policy."""
        if not self._has_begun:
            self._has_begun, self._first_s = True, request.program_arrived_s
        if request.program_arrived_s > self._first_s + _NEW_DAY_S:
            self._first_s = request.program_arrived_s - _DAY_S
            self.version += 1
        if not request.speculative:
            self._try(request)

    def promoted(self, request: QueuedRequest) -> None:
        """Let it run first as one that arrives now."""
        self._try(request)

    def completed(self, served: ServedRequest) -> None:
        """See Policy."""
        spans = self._programs[served.request.program]
        spans.append(replace(served, request=replace(served.request, prefix=())))
        if len(spans) == PROGRAM_MAX:
            self.program_ended(served.request.program)

    def cancelled(self, request: QueuedRequest) -> None:
        """Let another request run first: this one yields no latency."""
        self._trials.get(request.function, set()).discard(request.id)

    def program_ended(self, program: str) -> None:
        """Learn the remaining latencies of the program's stages."""
        for served, left_s in remaining_s(call_graph(self._programs.pop(program, []))):
            function = served.request.function
            self._trials.get(function, set()).discard(served.request.id)
            has_place = function in self._remaining or len(self._remaining) < FUNCTIONS_MAX
            if has_place and self._remaining[function].add(left_s):
                self._updated += 1
        if self._updated * SHARE > len(self._places):
            self._order()

    def function_ended(self, function: str) -> None:
        """Forget the function; it keeps its place until the order is recomputed."""
        self._remaining.pop(function, None)
        if self._trials.pop(function, None):
            self.version += 1

    def _try(self, request: QueuedRequest) -> None:
        """Let the request run first if its function is unknown and few others of it do."""
        if request.function not in self._places:
            trial = self._trials.setdefault(request.function, set())
            if len(trial) < TRIALS:
                trial.add(request.id)

    def _order(self) -> None:
        self._updated = 0
        known = {
            name: latencies.quantiles
            for name, latencies in self._remaining.items()
            if latencies.quantiles is not None
        }
        order = np.argsort(distance_from_zero(list(known.values())), kind="stable")
        names = list(known)
        places = {names[index]: place for place, index in enumerate(order, start=1)}
        if places != self._places:
            self._places = places
            self._trials = {name: own for name, own in self._trials.items() if name not in places}
            self.version += 1
