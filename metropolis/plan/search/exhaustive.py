"""The best schedule of a small application: all sequences of stages, by branch and bound.

A stage ends when its first node finishes, as in all searches here (SamuLLM §4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from metropolis.plan.search.candidates import needs_are_met, plans_of, used_gpus
from metropolis.plan.timeline import Moment, PlannedStage, Stage, Timeline
from metropolis.types import MetropolisError

OUTLOOKS_MAX = 1_000_000


def exhaustive_stages(timeline: Timeline, known_s: float = inf) -> list[PlannedStage] | None:
    """The stages that end first; None if none ends before `known_s`.

    Raises MetropolisError on an application that is too large.
    """
    best: tuple[float, list[PlannedStage] | None] = (known_s, None)

    def visit(moment: Moment, past: list[PlannedStage]) -> None:
        nonlocal best
        if not moment.unfinished:
            best = moment.time_s, past
            return
        for stage in _stages(timeline, moment):
            if timeline.outlooks > OUTLOOKS_MAX:
                raise MetropolisError("the application is too large for an exhaustive search")
            outlook = timeline.outlook(moment, stage)
            if outlook is not None and outlook.ends_s < best[0]:
                visit(timeline.after(outlook), [*past, PlannedStage(stage)])

    visit(timeline.start(), [])
    return best[1]


def _stages(timeline: Timeline, moment: Moment) -> Iterator[Stage]:
    """All stages that may begin now, each before those that it extends."""
    names = sorted(moment.unfinished)
    gpus = timeline.machine.gpus

    def extended(stage: Stage, index: int) -> Iterator[Stage]:
        if index == len(names):
            if stage and needs_are_met(timeline, moment, stage):
                yield stage
            return
        for plan in plans_of(timeline, names[index]):
            if plan.gpus <= gpus - used_gpus(stage):
                yield from extended({**stage, names[index]: plan}, index + 1)
        yield from extended(stage, index + 1)

    return extended({}, 0)
