"""Replays of a society on the fleets of allocations: the judge of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from metropolis.plan.society.allocation import Allocation, Models
from metropolis.plan.society.estimate import Estimate
from metropolis.plan.society.fleet import Phase, schedule_of
from metropolis.plan.society.phases import work_s
from metropolis.runtime.replays.replay import ReplayResult, Setting, replay
from metropolis.trace.schema import Trace

CALLS_MAX = 12_000
"""Approximate maximum of calls in the sample that is replayed in place of a phase."""


@dataclass(frozen=True)
class Stretch:
    """A phase of the day, and the part of it that is replayed in its place."""

    first: int
    whole: Trace
    sample: Trace
    factor: float
    """Work of the phase relative to that of the sample."""
    needed: tuple[bool, ...]
    """Whether the phase has calls of each model."""
    models: Models

    def hosts(self, allocation: Allocation) -> bool:
        """Whether the allocation has all models that are needed."""
        pairs = zip(self.needed, allocation, strict=True)
        return all(plan is not None or not is_needed for is_needed, plan in pairs)

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate of the phase."""
        return Estimate(self.whole, self.models)


def stretches(
    trace: Trace, models: Models, firsts: Sequence[int], calls_max: int = CALLS_MAX
) -> list[Stretch]:
    """The phases that begin at `firsts`."""
    return [
        _stretch(first, trace.window(first, last), models, calls_max)
        for first, last in pairwise([*firsts, trace.steps])
    ]


def _stretch(first: int, whole: Trace, models: Models, calls_max: int) -> Stretch:
    """The phase with the sample whose work is divided among models most as that of the phase."""
    steps, work = whole.calls.step, work_s(whole, models)
    parts = -(-len(steps) // calls_max) or 1
    inner = steps[[len(steps) * part // parts for part in range(1, parts)]].tolist()
    bounds = sorted({0, *inner, whole.steps})
    samples = [whole.window(begin, end) for begin, end in pairwise(bounds)]
    works = [work_s(sample, models) for sample in samples]

    def distance(index: int) -> float:
        share = works[index] / (works[index].sum() or 1.0)
        return float(np.abs(share - work / (work.sum() or 1.0)).sum())

    best = min(range(len(samples)), key=distance)
    factor = float(work.sum() / works[best].sum()) if works[best].any() else 1.0
    return Stretch(first, whole, samples[best], factor, tuple((work > 0).tolist()), models)


class Judge:
    """Replays in one mode; remembers the results of samples."""

    def __init__(
        self, trace: Trace, models: Models, mode: str, advance: Callable[[int], None]
    ) -> None:
        """`advance` is called with 1 after each replay."""
        self.models = models
        self._trace, self._mode, self._advance = trace, mode, advance
        self._known: dict[tuple[int, Allocation], float] = {}
        self.replays = 0

    def seconds(self, stretch: Stretch, allocation: Allocation) -> float:
        """The makespan of a stretch, from that of its sample, in simulated seconds."""
        key = stretch.first, allocation
        if key not in self._known:
            calls = stretch.sample.calls
            self._known[key] = (
                stretch.factor * self._replay(stretch.sample, [Phase(0, allocation)]).makespan_sim_s
                if len(calls)
                else 0.0
            )
        return self._known[key]

    def day(self, phases: Sequence[Phase]) -> ReplayResult:
        """A replay of the whole trace."""
        return self._replay(self._trace, phases)

    def _replay(self, trace: Trace, phases: Sequence[Phase]) -> ReplayResult:
        schedule = schedule_of(self.models, phases)
        setting = replace(Setting.of(trace.meta, schedule.fleet), schedule=schedule)
        self.replays += 1
        result = replay(trace, self._mode, setting)
        self._advance(1)
        return result
