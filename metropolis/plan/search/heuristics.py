"""The heuristics that SamuLLM is compared with (§5)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, islice, product

from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.search.candidates import continues, kept, plans_of, ready_nodes, used_gpus
from metropolis.plan.timeline import Moment, Stage, Timeline

STAGES_MAX = 512
"""Even divisions that are compared for one stage."""


def max_stage(timeline: Timeline, moment: Moment) -> Stage:
    """All GPUs for one model at a time, with the plan that finishes it first."""
    ready = ready_nodes(timeline, moment, {})
    name = next((each for each in moment.running if each in ready), ready[0])
    stages = [{name: plan} for plan in plans_of(timeline, name)]
    largest = max(used_gpus(stage) for stage in stages)
    return min(
        (stage for stage in stages if used_gpus(stage) == largest),
        key=lambda stage: _ends_s(timeline, moment, stage),
    )


def min_stage(timeline: Timeline, moment: Moment, preempt: bool = True) -> Stage:
    """As many models as possible; the GPUs are divided among them as evenly as possible.

    Models are taken in the application's order, those that run first; of at most STAGES_MAX even
    divisions, the one of the highest throughput is chosen. (The paper may also compare sets of
    models, §5.4.) Without `preempt`, what runs continues where it is, and the other GPUs are
    divided.
    """
    fixed: Stage = {} if preempt else kept(moment)
    names = _as_many_as_possible(timeline, moment, fixed)
    best: tuple[float, Stage] | None = None
    for stage in islice(_divisions(timeline, names, fixed), STAGES_MAX):
        outlook = timeline.outlook(moment, stage)
        if outlook is None or not continues(outlook, moment, fixed):
            continue
        if best is None or outlook.flops_per_s > best[0]:
            best = outlook.flops_per_s, stage
    return fixed if best is None else best[1]


def quickly_filled(timeline: Timeline, moment: Moment, fixed: Stage) -> Stage:
    """`fixed`, and others as in `min_stage`, without simulation.

    The first even division and the least tensor parallelism are taken.
    """
    names = _as_many_as_possible(timeline, moment, fixed)
    free = timeline.machine.gpus - used_gpus(fixed)
    shares = next(iter(even_shares(free, [least for _, least in names])))
    stage = dict(fixed)
    for (name, _), share in zip(names, shares, strict=True):
        stage[name] = _largest(plans_of(timeline, name), share)[0]
    return stage


def _as_many_as_possible(timeline: Timeline, moment: Moment, fixed: Stage) -> list[tuple[str, int]]:
    """The nodes to start, and the fewest GPUs of each; those that run come first."""
    free = timeline.machine.gpus - used_gpus(fixed)
    chosen: dict[str, int] = {}
    while True:
        ready = ready_nodes(timeline, moment, {**fixed, **dict.fromkeys(chosen, NO_PLAN)})
        ready.sort(key=lambda name: name not in moment.running)
        rest = [name for name in ready if name not in chosen and name not in fixed]
        least = {name: plans_of(timeline, name)[0].gpus for name in rest}
        fitting = [name for name in rest if least[name] <= free]
        if not fitting:
            return list(chosen.items())
        chosen[fitting[0]] = least[fitting[0]]
        free -= least[fitting[0]]


def _divisions(timeline: Timeline, names: list[tuple[str, int]], fixed: Stage) -> Iterable[Stage]:
    """Stages that divide the free GPUs evenly."""
    free = timeline.machine.gpus - used_gpus(fixed)
    for shares in even_shares(free, [least for _, least in names]):
        choices = [
            _largest(plans_of(timeline, name), share)
            for (name, _), share in zip(names, shares, strict=True)
        ]
        for plans in product(*choices):
            yield {**fixed, **{name: plan for (name, _), plan in zip(names, plans, strict=True)}}


def _largest(plans: Iterable[ExecutionPlan], share: int) -> list[ExecutionPlan]:
    """The plans with the most GPUs within `share`."""
    within = [plan for plan in plans if plan.gpus <= share]
    most = max(plan.gpus for plan in within)
    return [plan for plan in within if plan.gpus == most]


def even_shares(gpus: int, least: list[int]) -> Iterable[tuple[int, ...]]:
    """Divisions whose parts differ as little as possible; no part is below its least."""
    shares = list(least)
    while sum(shares) < gpus and shares:
        smallest = min(shares)
        poor = [index for index, share in enumerate(shares) if share == smallest]
        spare = gpus - sum(shares)
        if spare < len(poor):
            for chosen in combinations(poor, spare):
                yield tuple(
                    share + 1 if index in chosen else share for index, share in enumerate(shares)
                )
            return
        for index in poor:
            shares[index] += 1
    yield tuple(shares)


def _ends_s(timeline: Timeline, moment: Moment, stage: Stage) -> float:
    outlook = timeline.outlook(moment, stage)
    return float("inf") if outlook is None else outlook.ends_s


NO_PLAN = ExecutionPlan(0, 0)
