"""How often a policy's order agrees with the remaining latencies (Kairos §7.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

import numpy as np

from metropolis.policy.base import Policy, ServedRequest
from metropolis.policy.kairos.workflow import call_graph, remaining_s

SAMPLE = 2000
"""Maximum number of executions that are compared pairwise, drawn from the whole run."""


def ordering_accuracy(served_requests: Sequence[ServedRequest], policy: Policy) -> float:
    """The share of pairs of requests that `policy` orders correctly, averaged over the requests.

    A request is paired with all requests of other functions. The order of a pair is correct if the
    request with less remaining latency in its program runs first. Equal ranks count one half, since
    the order of arrival carries no information.
    """
    programs: dict[str, list[ServedRequest]] = defaultdict(list)
    for served in served_requests:
        programs[served.request.program].append(served)
    left = [pair for found in programs.values() for pair in remaining_s(call_graph(found))]
    left = Random(0).sample(left, min(SAMPLE, len(left)))
    ranks = np.array([policy.rank(served.request) for served, _ in left])
    left_s = np.array([seconds for _, seconds in left])
    functions = np.array([served.request.function for served, _ in left])
    counted = (functions[:, None] != functions) & (left_s[:, None] != left_s)
    right = (ranks[:, None] < ranks) == (left_s[:, None] < left_s)
    share = np.where(ranks[:, None] == ranks, 0.5, right)
    others = counted.sum(axis=1)
    if not others.any():
        return 1.0
    return float(((share * counted).sum(axis=1)[others > 0] / others[others > 0]).mean())
