"""One application under several methods: planned on one draw of lengths, run on others.

All is simulated. A run differs from the plan in two ways: its lengths are another draw, and the
iterations of each model and tensor parallelism are slower or faster by a factor of the size of the
profiles' own error against measurements (4.5 % on average, docs/results/samullm.md). Plans and runs
draw from the same distributions, and loading takes as long as planned: the errors of estimates here
leave out what the paper's contain of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np

from metropolis.bench.samullm.paper import DISTRIBUTIONS, MACHINE
from metropolis.plan.application import Application
from metropolis.plan.comparison import compare_methods
from metropolis.plan.search.bound import Bounds
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import Columns, Workload, columns_of, drawn

PROFILE_ERROR = 0.045
"""The mean absolute error of the measured profiles' iteration times."""
DRAWS = 5
TENSOR_PARALLEL = (1, 2, 4, 8)


@dataclass(frozen=True)
class Truth:
    """What a plan does not know: the lengths in a run, and the speed of its models.

    `slowness`: (model, tensor parallelism) -> factor of the duration of iterations.
    """

    workload: Workload
    slowness: dict[tuple[str, int], float]

    def timeline(self) -> Timeline:
        """A simulator of stages under these lengths and speeds."""
        return Timeline(MACHINE, self.workload, self.slowness)


@dataclass(frozen=True)
class Comparison:
    """An application, what a plan knows of it, and its truths."""

    columns: Columns
    planned: Workload
    truths: tuple[Truth, ...]

    @classmethod
    def of(cls, application: Application, seed: int, draws: int) -> Comparison:
        """A plan knows the lengths that are known in advance, and one draw of the others."""
        columns = columns_of(application)
        random = np.random.default_rng((seed, 1))
        planned = drawn(columns, DISTRIBUTIONS, MACHINE.shapes, random)
        truths = tuple(_truth(columns, (seed, 2, draw)) for draw in range(draws))
        return cls(columns, planned, truths)


def measured(
    comparison: Comparison, methods: Sequence[str], planned: Workload | None = None
) -> dict[str, dict[str, Any]]:
    """For each method the estimate, the search time and the times of all truths, in seconds.

    `planned`: the workload that plans know, in place of the drawn one.
    """
    truths = (truth.timeline() for truth in comparison.truths)
    results = compare_methods(MACHINE, planned or comparison.planned, methods, truths)
    return {
        method: {
            "estimate_s": result.schedule.ends_s,
            "search_s": result.search_s,
            "runs_s": result.runs_s,
            "errors": result.errors,
            "error": float(np.mean(result.errors)),
            "inference_s": result.mean_s,
            "end_to_end_s": result.mean_s + result.search_s,
            "stages": len(result.schedule.stages),
        }
        for method, result in zip(methods, results, strict=True)
    }


def compared(
    settings: Sequence[Application],
    methods: Sequence[str],
    seed: int,
    draws: int,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """A row for each setting, with the ratio of each method's end-to-end time to that of ours."""
    rows = []
    for application in settings:
        comparison = Comparison.of(application, seed, draws)
        results = measured(comparison, methods)
        rows.append(
            {
                "setting": application.name,
                "methods": results,
                "bound_s": Bounds(Timeline(MACHINE, comparison.planned)).whole_s,
                **ratios(results),
            }
        )
        advance(1)
    return rows


def ratios(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """End-to-end and inference times relative to those of `ours`."""
    return {
        name: {method: each[key] / results["ours"][key] for method, each in results.items()}
        for name, key in (("ratio", "end_to_end_s"), ("inference_ratio", "inference_s"))
    }


def _truth(columns: Columns, seed: Sequence[int]) -> Truth:
    random = np.random.default_rng(seed)
    workload = drawn(columns, DISTRIBUTIONS, MACHINE.shapes, random)
    models = sorted({each.node.model for each in columns.values()})
    # a normal distribution with that mean absolute value has this sigma
    sigma = PROFILE_ERROR * sqrt(pi / 2)
    factors = np.exp(random.normal(0, sigma, (len(models), len(TENSOR_PARALLEL))))
    return Truth(
        workload,
        {
            (model, tensor_parallel): float(factors[i, j])
            for i, model in enumerate(models)
            for j, tensor_parallel in enumerate(TENSOR_PARALLEL)
        },
    )
