"""What called what, from names and times alone (Kairos §4.2), and how long was left (§4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from metropolis.policy.base import Execution


@dataclass(slots=True)
class Stage:
    """An execution and those that it led to, by the time they started."""

    execution: Execution
    children: list[Stage] = field(default_factory=list)

    @property
    def latency_s(self) -> float:
        """Of the execution and all that it led to, without queueing."""
        return self.execution.latency_s + sum(map(longest_s, in_parallel(self.children)))


def call_graph(executions: Sequence[Execution]) -> list[Stage]:
    """The stages that nothing led to, of one program's executions.

    A name alone does not say which of several executions of a function led to another: it is the
    one that completed last before that arrived.
    """
    begun: list[Stage] = []
    completed: dict[str, list[Stage]] = {}
    stages = [Stage(e) for e in sorted(executions, key=lambda e: (e.started_s, e.request.id))]
    for stage in sorted(stages, key=lambda s: (s.execution.completed_s, s.execution.request.id)):
        completed.setdefault(stage.execution.request.function, []).append(stage)
    for stage in stages:
        request = stage.execution.request
        led = None
        for candidate in completed.get(request.upstream or "", ()):
            if candidate.execution.completed_s > request.arrived_s:
                break
            led = candidate
        (begun if led is None else led.children).append(stage)
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


def remaining_s(stages: Sequence[Stage], after_s: float = 0.0) -> Iterator[tuple[Execution, float]]:
    """Per execution the latency from its start to the end of the workflow.

    Queueing is not included: it says how busy the engines were, not what the workflow takes.
    `after_s` is what follows when all of `stages` are through.
    """
    groups = in_parallel(stages)
    for number, group in enumerate(groups):
        then_s = after_s + sum(map(longest_s, groups[number + 1 :]))
        for stage in group:
            yield stage.execution, stage.latency_s + then_s
            yield from remaining_s(stage.children, then_s)
