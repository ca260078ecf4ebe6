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
from metropolis.runtime.replays.replay import ReplayResult, Setting, replay
from metropolis.trace.schema import Trace

CALLS_MAX = 8_000
"""Of the stretch that is replayed in place of a phase."""


@dataclass(frozen=True)
class Stretch:
    """A phase of the day, and the part of it that is replayed in its place."""

    first: int
    sample: Trace
    factor: float
    """Calls of the phase for each call of the sample."""
    needed: tuple[bool, ...]
    """Whether the phase has calls of each model."""
    models: Models

    def hosts(self, allocation: Allocation) -> bool:
        """Whether the allocation has all models that are needed."""
        pairs = zip(self.needed, allocation, strict=True)
        return all(plan is not None or not is_needed for is_needed, plan in pairs)

    @cached_property
    def estimate(self) -> Estimate:
        """Of the sample."""
        return Estimate(self.sample, self.models)


def stretches(
    trace: Trace, models: Models, firsts: Sequence[int], calls_max: int = CALLS_MAX
) -> list[Stretch]:
    """The phases that begin at `firsts`, each with the steps around its middle call."""
    found = []
    for first, last in pairwise([*firsts, trace.steps]):
        is_within = (trace.calls.step >= first) & (trace.calls.step < last)
        steps = trace.calls.step[is_within]
        used = {trace.calls.models[index] for index in np.unique(trace.calls.model[is_within])}
        begin, end = first, last
        if len(steps) > calls_max:
            middle, half = len(steps) // 2, calls_max // 2
            begin, end = int(steps[middle - half]), int(steps[middle + half - 1]) + 1
        count = int(np.count_nonzero((steps >= begin) & (steps < end)))
        factor = len(steps) / count if count else 1.0
        needed = tuple(name in used for name in models.names)
        found.append(Stretch(first, trace.window(begin, end), factor, needed, models))
    return found


class Judge:
    """Replays in one mode; remembers the results of samples."""

    def __init__(
        self, trace: Trace, models: Models, mode: str, advance: Callable[[int], None]
    ) -> None:
        """`advance` is called with 1 after each replay."""
        self._trace, self._models, self._mode, self._advance = trace, models, mode, advance
        self._known: dict[tuple[int, Allocation], float] = {}
        self.replays = 0

    def seconds(self, stretch: Stretch, allocation: Allocation) -> float:
        """The makespan of a stretch, from that of its sample, in simulated seconds."""
        key = stretch.first, allocation
        if key not in self._known:
            calls = stretch.sample.calls
            self._known[key] = (
                stretch.factor * self._replayed(stretch.sample, [Phase(0, allocation)])
                if len(calls)
                else 0.0
            )
        return self._known[key]

    def day(self, phases: Sequence[Phase]) -> ReplayResult:
        """A replay of the whole trace."""
        return self._replay(self._trace, phases)

    def _replayed(self, trace: Trace, phases: Sequence[Phase]) -> float:
        return self._replay(trace, phases).makespan_sim_s

    def _replay(self, trace: Trace, phases: Sequence[Phase]) -> ReplayResult:
        schedule = schedule_of(self._models, phases)
        setting = Setting.of(trace.meta, schedule.fleet)
        if len(phases) > 1:
            setting = replace(setting, schedule=schedule)
        self.replays += 1
        result = replay(trace, self._mode, setting)
        self._advance(1)
        return result
