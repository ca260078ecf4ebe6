"""What may run next."""

from __future__ import annotations

from collections.abc import Iterable

from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.timeline import Moment, Outlook, Stage, Timeline


def ready_nodes(timeline: Timeline, moment: Moment, stage: Stage) -> list[str]:
    """Unfinished nodes whose needs are finished, or in `stage` (SamuLLM Alg. 1, line 5)."""
    unfinished = moment.unfinished
    return [
        name
        for name, workload in timeline.workload.items()
        if name in unfinished
        and all(need.node not in unfinished or need.node in stage for need in workload.needs)
    ]


def needs_are_met(timeline: Timeline, moment: Moment, stage: Stage) -> bool:
    """Whether what the nodes of a stage need is finished or in it."""
    return stage.keys() <= {*ready_nodes(timeline, moment, stage)}


def can_run(timeline: Timeline, moment: Moment, stage: Stage) -> bool:
    """Whether a stage fits on the GPUs, and what its nodes need is finished or in it."""
    return needs_are_met(timeline, moment, stage) and timeline.fits(moment, stage)


def used_gpus(stage: Stage) -> int:
    """GPUs that a stage occupies."""
    return sum(plan.gpus for plan in stage.values())


def plans_of(timeline: Timeline, name: str) -> tuple[ExecutionPlan, ...]:
    """The valid plans of a node's model."""
    return timeline.machine.plans(timeline.workload[name].node.model)


def continues(outlook: Outlook, moment: Moment, names: Iterable[str]) -> bool:
    """Whether these nodes, which run, stay on their GPUs."""
    return all(outlook.moment.running[name] is moment.running[name] for name in names)


def kept(moment: Moment) -> dict[str, ExecutionPlan]:
    """The plans of what runs."""
    return {name: started.plan for name, started in moment.running.items()}
