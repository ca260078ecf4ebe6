"""Independent parts of an application: the longest is planned alone, the others fill its gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from metropolis.plan.follow import Follower
from metropolis.plan.search.candidates import can_run, kept
from metropolis.plan.search.heuristics import quickly_filled
from metropolis.plan.timeline import Moment, PlannedStage, Stage, Timeline


def components(timeline: Timeline) -> list[frozenset[str]]:
    """Nodes that need each other, directly or not, in the order of the workload."""
    found: list[set[str]] = []
    for name, workload in timeline.workload.items():
        needed = {need.node for need in workload.needs}
        joined = [each for each in found if each & needed]
        found = [each for each in found if not each & needed]
        found.append({name}.union(*joined))
    return [frozenset(each) for each in found]


def part_of(timeline: Timeline, names: frozenset[str], gpus: int) -> Timeline | None:
    """The timeline of some nodes alone on some of the GPUs; None if one does not fit on them."""
    workload = {name: each for name, each in timeline.workload.items() if name in names}
    machine = replace(timeline.machine, gpus=gpus)
    for each in workload.values():
        if not any(plan.gpus <= gpus for plan in timeline.machine.plans(each.node.model)):
            return None
    return Timeline(machine, workload, timeline.slowness)


def filling(
    timeline: Timeline, names: frozenset[str], stages: Sequence[PlannedStage]
) -> Callable[[Moment], PlannedStage]:
    """The method that follows `stages`, those of the nodes `names`, and fills the free GPUs.

    What fills them is stopped where the stages need its GPUs.
    """
    now: list[Moment] = []

    follower = Follower(stages, lambda stage: can_run(timeline, now[0], stage))
    planned: Stage = {}
    open_nodes: set[str] | None = None

    def is_over(moment: Moment) -> bool:
        boundary = follower.boundary
        if boundary is None or boundary.node not in moment.running:
            return False
        outlook = timeline.outlook(moment, kept(moment))
        assert outlook is not None
        left = outlook.predictions[boundary.node].open_requests(moment.time_s)
        return left <= boundary.open_requests

    def choose(moment: Moment) -> PlannedStage:
        nonlocal planned, open_nodes
        now[:] = [moment]
        unfinished, running = moment.unfinished & names, kept(moment)
        if open_nodes != unfinished or is_over(moment):
            own = {name: plan for name, plan in running.items() if name in names}
            planned = follower.next_stage(unfinished, own) if unfinished else {}
            open_nodes = unfinished
        stage = dict(planned)
        for name, plan in running.items():
            if name not in names and can_run(timeline, moment, larger := {**stage, name: plan}):
                stage = larger
        return PlannedStage(quickly_filled(timeline, moment, stage), follower.boundary)

    return choose
