"""Call graphs from names and times alone (Kairos §4.2), and remaining latencies (§4.3)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from metropolis.policy.base import ServedRequest


@dataclass(slots=True)
class Stage:
    """An execution and the stages it triggered, in order of their arrival."""

    served: ServedRequest
    children: list[Stage] = field(default_factory=list)
    latency_s: float = 0.0
    """Latency of the execution and everything it triggered, without queueing."""


def call_graph(served_requests: Sequence[ServedRequest]) -> list[Stage]:
    """The root stages of one program, from its executions.

    Several executions may have the name of a request's upstream function: the one that completed
    last before the request arrived is its parent. An execution without duration has no children,
    so that a child always arrives later than its parent.
    """
    roots: list[Stage] = []
    completed: defaultdict[str, list[Stage]] = defaultdict(list)
    arrived = sorted(served_requests, key=lambda e: (e.request.arrived_s, e.request.id))
    stages = [Stage(served) for served in arrived]
    for stage in sorted(stages, key=lambda s: (s.served.completed_s, s.served.request.id)):
        if stage.served.latency_s > 0:
            completed[stage.served.request.function].append(stage)
    for stage in stages:
        request = stage.served.request
        upstream = completed.get(request.upstream or "", [])
        before = bisect_right(upstream, request.arrived_s, key=lambda s: s.served.completed_s)
        siblings = upstream[before - 1].children if before else roots
        siblings.append(stage)
    for stage in reversed(stages):
        after_s = sum(map(longest_s, in_parallel(stage.children)))
        stage.latency_s = stage.served.latency_s + after_s
    return roots


def in_parallel(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The children of one execution in consecutive groups; a group overlaps in time.

    A sweep over their spans: a stage that arrives before all earlier ones have completed is
    parallel to them, also if it waits until they have.
    """
    groups: list[list[Stage]] = []
    until_s = float("-inf")
    for stage in stages:
        if stage.served.request.arrived_s >= until_s:
            groups.append([])
        groups[-1].append(stage)
        until_s = max(until_s, stage.served.completed_s)
    return groups


def longest_s(stages: Sequence[Stage]) -> float:
    """The latency of parallel stages."""
    return max(stage.latency_s for stage in stages)


def remaining_s(roots: Sequence[Stage]) -> Iterator[tuple[ServedRequest, float]]:
    """For each execution, the latency from its start to the end of the workflow.

    Queueing is excluded: it measures the load of the engines, not the workflow.
    """
    left = list(_followed_by(roots, 0.0))
    while left:
        stage, then_s = left.pop()
        yield stage.served, stage.latency_s + then_s
        left += _followed_by(stage.children, then_s)


def _followed_by(stages: Sequence[Stage], after_s: float) -> Iterator[tuple[Stage, float]]:
    """Each stage with the latency of what follows it, last first; `after_s` follows all of them."""
    for group in reversed(in_parallel(stages)):
        for stage in reversed(group):
            yield stage, after_s
        after_s += longest_s(group)
