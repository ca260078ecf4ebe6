"""What called what, from names and times alone (Kairos §4.2), and how long was left (§4.3)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from metropolis.policy.base import Execution


@dataclass(slots=True)
class Stage:
    """An execution and those that it led to, by the time they started."""

    execution: Execution
    children: list[Stage] = field(default_factory=list)
    latency_s: float = 0.0
    """Of the execution and all that it led to, without queueing."""


def call_graph(executions: Sequence[Execution]) -> list[Stage]:
    """The stages that nothing led to, of one program's executions.

    A name alone does not say which of several executions of a function led to another: it is the
    one that completed last before that arrived. What took no time led to nothing, so that whatever
    was led to started later than what led to it.
    """
    begun: list[Stage] = []
    completed: defaultdict[str, list[Stage]] = defaultdict(list)
    stages = [Stage(e) for e in sorted(executions, key=lambda e: (e.started_s, e.request.id))]
    for stage in sorted(stages, key=lambda s: (s.execution.completed_s, s.execution.request.id)):
        if stage.execution.latency_s > 0:
            completed[stage.execution.request.function].append(stage)
    for stage in stages:
        request = stage.execution.request
        upstream = completed.get(request.upstream or "", [])
        before = bisect_right(upstream, request.arrived_s, key=lambda s: s.execution.completed_s)
        (upstream[before - 1].children if before else begun).append(stage)
    for stage in reversed(stages):
        after_s = sum(map(longest_s, in_parallel(stage.children)))
        stage.latency_s = stage.execution.latency_s + after_s
    return begun


def in_parallel(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Those that one execution led to in groups, one after the other; a group overlaps in time.

    A sweep line over their spans: who starts before all earlier ones have completed is in parallel
    with them.
    """
    groups: list[list[Stage]] = []
    until_s = float("-inf")
    for stage in stages:
        if stage.execution.started_s >= until_s:
            groups.append([])
        groups[-1].append(stage)
        until_s = max(until_s, stage.execution.completed_s)
    return groups


def longest_s(stages: Sequence[Stage]) -> float:
    """How long stages in parallel take together."""
    return max(stage.latency_s for stage in stages)


def remaining_s(begun: Sequence[Stage]) -> Iterator[tuple[Execution, float]]:
    """Per execution the latency from its start to the end of the workflow.

    Queueing is not included: it says how busy the engines were, not what the workflow takes.
    """
    left = list(_followed_by(begun, 0.0))
    while left:
        stage, then_s = left.pop()
        yield stage.execution, stage.latency_s + then_s
        left += _followed_by(stage.children, then_s)


def _followed_by(stages: Sequence[Stage], after_s: float) -> Iterator[tuple[Stage, float]]:
    """Each with the latency of what follows it, the last first; `after_s` follows all."""
    for group in reversed(in_parallel(stages)):
        for stage in reversed(group):
            yield stage, after_s
        after_s += longest_s(group)
