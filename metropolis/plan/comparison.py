"""Methods on the same application: their schedules, and simulated runs with other lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from metropolis.plan.application_file import LoadedApplication
from metropolis.plan.machine import Machine
from metropolis.plan.schedule import Schedule
from metropolis.plan.search.methods import search
from metropolis.plan.simulated_run import simulate_run
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import Workload


@dataclass(frozen=True)
class MethodResult:
    """The schedule of a method, and the durations of its simulated runs."""

    schedule: Schedule
    search_s: float
    """Measured time of the search."""
    runs_s: tuple[float, ...]
    """Durations of simulated runs, each with lengths that the search did not know."""

    @property
    def mean_s(self) -> float:
        """The mean of the runs; without runs, the estimate."""
        return float(np.mean(self.runs_s or [self.schedule.ends_s]))

    def quantile_s(self, share: float) -> float:
        """A quantile of the runs; without runs, the estimate."""
        return float(np.quantile(self.runs_s or [self.schedule.ends_s], share))

    @property
    def errors(self) -> tuple[float, ...]:
        """The relative error of the estimate, for each run."""
        return tuple(abs(self.schedule.ends_s / run_s - 1) for run_s in self.runs_s)


def compare(
    loaded: LoadedApplication,
    methods: Sequence[str],
    draws: int,
    seed: int,
    advance: Callable[[int], None] = lambda _: None,
    describe: Callable[[str], None] = lambda _: None,
) -> tuple[Workload, list[MethodResult]]:
    """The workload that is planned for, and a result for each method.

    The runs have `draws` other workloads; `advance` and `describe` as in `compare_methods`. Raises
    MetropolisError if a draw does not fit the context of its model.
    """
    planned, machine = loaded.workload(seed), loaded.machine
    truths = (Timeline(machine, loaded.workload(seed, draw + 1)) for draw in range(draws))
    return planned, compare_methods(machine, planned, methods, truths, advance, describe)


def compare_methods(
    machine: Machine,
    planned: Workload,
    methods: Sequence[str],
    truths: Iterable[Timeline],
    advance: Callable[[int], None] = lambda _: None,
    describe: Callable[[str], None] = lambda _: None,
) -> list[MethodResult]:
    """A result for each method: its schedule for `planned`, run in each of the `truths`.

    `advance` is called with 1 after each search and after each of the truths, `describe` with what
    comes next.
    """
    schedules, search_s = list[Schedule](), list[float]()
    for method in methods:
        describe(f"search {method}")
        begun_s = perf_counter()
        schedules.append(search(Timeline(machine, planned), method))
        search_s.append(perf_counter() - begun_s)
        advance(1)
    describe("simulated runs")
    runs_s: list[list[float]] = [[] for _ in methods]
    for timeline in truths:
        for schedule, of_method in zip(schedules, runs_s, strict=True):
            of_method.append(simulate_run(timeline, schedule).ends_s)
        advance(1)
    results = zip(schedules, search_s, map(tuple, runs_s), strict=True)
    return [MethodResult(*each) for each in results]
