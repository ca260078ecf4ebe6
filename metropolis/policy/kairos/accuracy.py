"""How often a policy's order agrees with the remaining latencies (Kairos §7.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from metropolis.policy.base import Policy, ServedRequest
from metropolis.policy.kairos.workflow import call_graph, remaining_s

SAMPLE = 2000
"""Number of latest executions that are compared pairwise."""


def ordering_accuracy(served_requests: Sequence[ServedRequest], policy: Policy) -> float:
    """The share of pairs of requests of different functions that `policy` orders correctly.

    Correct: the request with less remaining latency in its program runs first. A tie of ranks
    counts one half, as the order of arrival carries no information.
    """
    programs: dict[str, list[ServedRequest]] = defaultdict(list)
    for served in served_requests:
        programs[served.request.program].append(served)
    left = [pair for found in programs.values() for pair in remaining_s(call_graph(found))]
    left = left[-SAMPLE:]
    ranks = np.array([policy.rank(served.request) for served, _ in left])
    left_s = np.array([seconds for _, seconds in left])
    functions = np.array([served.request.function for served, _ in left])
    counted = (functions[:, None] != functions) & (left_s[:, None] < left_s)
    right = (ranks[:, None] < ranks) + 0.5 * (ranks[:, None] == ranks)
    return float(right[counted].mean()) if counted.any() else 1.0
