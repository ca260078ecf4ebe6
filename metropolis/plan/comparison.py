"""Methods on the same application: their schedules, and simulated runs with other lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from metropolis.plan.application_file import LoadedApplication
from metropolis.plan.schedule import Schedule
from metropolis.plan.search.methods import search
from metropolis.plan.simulated_run import simulate_run
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import Workload, columns_of, drawn


@dataclass(frozen=True)
class MethodResult:
    """The schedule of a method, and how it turns out."""

    schedule: Schedule
    search_s: float
    """Measured."""
    runs_s: tuple[float, ...]
    """Durations of simulated runs, each with lengths that the search did not know."""

    @property
    def mean_s(self) -> float:
        """The mean of the runs; without runs, the estimate."""
        return float(np.mean(self.runs_s or [self.schedule.ends_s]))

    def quantile_s(self, share: float) -> float:
        """A quantile of the runs; without runs, the estimate."""
        return float(np.quantile(self.runs_s or [self.schedule.ends_s], share))


def compare(
    loaded: LoadedApplication,
    methods: Sequence[str],
    draws: int,
    seed: int,
    advance: Callable[[int], None] = lambda _: None,
    describe: Callable[[str], None] = lambda _: None,
) -> tuple[Workload, list[MethodResult]]:
    """The workload that is planned for, and a result for each method.

    Every method is judged by the same `draws` workloads. `advance` is called with 1 after each
    search and after each workload, `describe` with what comes next. Raises MetropolisError if a
    draw does not fit the context of its model.
    """
    columns = columns_of(loaded.application)

    def workload(*seeds: int) -> Workload:
        random = np.random.default_rng(seeds)
        return drawn(columns, loaded.lengths, loaded.machine.shapes, random)

    planned = workload(seed)
    schedules, search_s = list[Schedule](), list[float]()
    for method in methods:
        describe(f"search {method}")
        begun_s = perf_counter()
        schedules.append(search(Timeline(loaded.machine, planned), method))
        search_s.append(perf_counter() - begun_s)
        advance(1)
    describe("simulated runs")
    runs_s: list[list[float]] = [[] for _ in methods]
    for draw in range(draws):
        timeline = Timeline(loaded.machine, workload(seed, draw + 1))
        for schedule, of_method in zip(schedules, runs_s, strict=True):
            of_method.append(simulate_run(timeline, schedule).ends_s)
        advance(1)
    results = zip(schedules, search_s, map(tuple, runs_s), strict=True)
    return planned, [MethodResult(*each) for each in results]
