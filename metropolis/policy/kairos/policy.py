"""The policy: functions by their remaining latency, within one by their program's start (§5)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from metropolis.policy.base import Execution, Policy, QueuedRequest
from metropolis.policy.kairos.latency import Latencies
from metropolis.policy.kairos.priority import distance_from_zero
from metropolis.policy.kairos.workflow import call_graph, remaining_s

_START_BITS = 44
"""The start of a program in ms; above it the place of its function."""


class Kairos(Policy):
    """Learns while it runs: until a function is known it stands in the middle of the others."""

    def __init__(self) -> None:
        self._programs: dict[str, list[Execution]] = defaultdict(list)
        self._remaining: dict[str, Latencies] = defaultdict(Latencies)
        self._places: dict[str, int] = {}

    def rank(self, request: QueuedRequest) -> int:
        """See Policy."""
        place = self._places.get(request.function, len(self._places) // 2)
        return place << _START_BITS | int(request.program_arrived_s * 1000)

    def completed(self, execution: Execution) -> None:
        """See Policy."""
        self._programs[execution.request.program].append(execution)

    def program_ended(self, program: str) -> None:
        """Learn from the program how long its stages had left."""
        begun = call_graph(self._programs.pop(program, []))
        news = [
            self._remaining[execution.request.function].add(left_s)
            for execution, left_s in remaining_s(begun)
        ]
        if any(news):
            self._order()

    def _order(self) -> None:
        known = {
            name: latencies.quantiles
            for name, latencies in self._remaining.items()
            if latencies.quantiles is not None
        }
        order = np.argsort(distance_from_zero(list(known.values())), kind="stable")
        names = list(known)
        self._places = {names[index]: place for place, index in enumerate(order)}
        self.version += 1
