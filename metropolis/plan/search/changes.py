"""Changes of a stage, for the search that looks ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from metropolis.plan.search.candidates import kept, plans_of, ready_nodes, used_gpus
from metropolis.plan.search.heuristics import quickly_filled
from metropolis.plan.timeline import Boundary, Moment, PlannedStage, Stage, Timeline

EARLY = (0.3, 0.5, 0.7, 0.85)
"""The parts of a stage after which it may end early."""


def neighbours(timeline: Timeline, moment: Moment, stage: Stage) -> Iterable[Stage]:
    """Stages with one plan changed, two models' GPUs exchanged, or one model more or less."""
    free = timeline.machine.gpus - used_gpus(stage)
    for name in ready_nodes(timeline, moment, stage):
        now = stage.get(name)
        for plan in plans_of(timeline, name):
            extra = plan.gpus - (now.gpus if now else 0) - free
            if plan == now:
                continue
            changed = {**stage, name: plan}
            if extra <= 0:
                yield changed
            else:
                yield from _made_room(timeline, changed, name, extra)
    for name, plan in kept(moment).items():  # what runs goes on
        if stage.get(name) != plan:
            yield {**stage, name: plan}
    for name in stage:
        yield {other: plan for other, plan in stage.items() if other != name}


def seeded(timeline: Timeline, moment: Moment, tails_s: Mapping[str, float]) -> Iterable[Stage]:
    """Each plan of the node with the longest chain, and others on the GPUs that are left."""
    ready = ready_nodes(timeline, moment, {})
    if not ready:
        return
    longest = max(ready, key=lambda name: tails_s[name])
    for plan in plans_of(timeline, longest):
        yield quickly_filled(timeline, moment, {longest: plan})


def shrunk_early(
    timeline: Timeline, moment: Moment, stage: PlannedStage
) -> Iterable[list[PlannedStage]]:
    """The stage with an early end, at which the model that runs longest gives GPUs to others."""
    outlook = timeline.outlook(moment, *stage)
    if outlook is None or outlook.ends_s == inf:
        return
    name = max(outlook.predictions, key=lambda each: outlook.predictions[each].finished_s)
    prediction, plan = outlook.predictions[name], stage.plans[name]
    for share in EARLY:
        at_s = moment.time_s + share * (outlook.ends_s - moment.time_s)
        boundary = Boundary(name, prediction.open_requests(at_s))
        begun = timeline.outlook(moment, stage.plans, boundary)
        if begun is None or not moment.time_s < begun.ends_s < outlook.ends_s:
            continue
        following = timeline.after(begun)
        others = {other: each for other, each in kept(following).items() if other != name}
        for smaller in plans_of(timeline, name):
            if smaller.gpus < plan.gpus:
                rest = quickly_filled(timeline, following, {**others, name: smaller})
                yield [PlannedStage(stage.plans, boundary), PlannedStage(rest)]


def _made_room(timeline: Timeline, stage: Stage, winner: str, extra: int) -> Iterable[Stage]:
    """`stage` with `extra` GPUs less for one model other than `winner`, or without it."""
    for name, plan in stage.items():
        if name == winner or plan.gpus < extra:
            continue
        left = plan.gpus - extra
        if left == 0:
            yield {other: each for other, each in stage.items() if other != name}
        for smaller in plans_of(timeline, name):
            if smaller.gpus == left:
                yield {**stage, name: smaller}
