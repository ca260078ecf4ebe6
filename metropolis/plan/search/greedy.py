"""SamuLLM's greedy search (Algorithm 1).

Stage by stage: give GPUs to the model and plan that raise the stage's throughput most for each GPU
added, until none is left or no plan raises it. A stage ends when its first model finishes. The time
to load a model counts within the stage.
"""

from __future__ import annotations

from collections.abc import Collection

from metropolis.plan.search.candidates import continues, kept, plans_of, ready_nodes, used_gpus
from metropolis.plan.timeline import Moment, Stage, Timeline


def greedy_stage(timeline: Timeline, moment: Moment, preempt: bool = True) -> Stage:
    """The next stage; without `preempt`, what runs continues where it is."""
    stage: Stage = {} if preempt else kept(moment)
    fixed = frozenset(stage)
    throughput = _throughput(timeline, moment, stage, fixed)
    while True:
        best: tuple[float, float, Stage] | None = None
        gpus = used_gpus(stage)
        for candidate in _larger(timeline, moment, stage, fixed):
            raised = _throughput(timeline, moment, candidate, fixed)
            gain = (raised - throughput) / (used_gpus(candidate) - gpus)
            if best is None or gain > best[0]:
                best = gain, raised, candidate
        if best is None or (best[0] <= 0 and stage):
            return stage
        _, throughput, stage = best


def _larger(timeline: Timeline, moment: Moment, stage: Stage, fixed: frozenset[str]) -> list[Stage]:
    """The stage with one more model, or with more GPUs for one."""
    free = timeline.machine.gpus - used_gpus(stage)
    found: list[Stage] = []
    for name in ready_nodes(timeline, moment, stage):
        before = stage[name].gpus if name in stage else 0
        if name in fixed:
            continue
        for plan in plans_of(timeline, name):
            if before < plan.gpus <= before + free:
                found.append({**stage, name: plan})
    return found


def _throughput(timeline: Timeline, moment: Moment, stage: Stage, fixed: Collection[str]) -> float:
    """Operations per second; below 0 if the stage does not fit or moves a `fixed` node."""
    if not stage:
        return 0.0
    outlook = timeline.outlook(moment, stage)
    if outlook is None or not continues(outlook, moment, fixed):
        return -1.0
    return outlook.flops_per_s
