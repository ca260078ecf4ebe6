"""Section `optimum`: how far schedules are from the best, on random small applications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from metropolis.bench.droidspeak.tables import print_table
from metropolis.plan.application import Application, Item, Node
from metropolis.plan.lengths import LengthDistribution
from metropolis.plan.machine import LoadingTime, Machine
from metropolis.plan.schedule import simulated
from metropolis.plan.search.exhaustive import exhaustive_stages
from metropolis.plan.search.methods import search
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import columns_of, drawn

KIND = "simulated"
CASES = 200
METHODS = ("ours", "greedy", "max", "min", "greedy-no-preemption", "min-no-preemption")
MODELS = ("vicuna-13b", "chatglm3-6b", "mpt-7b", "mistral-7b", "dolly-12b")
SHORT_LOADS = LoadingTime(base_s=0.0, s_per_gb=0.1, least_s=0.0, copy_s=0.2, parallel_s=0.5)
"""Loading times that are short in proportion to the work of these small applications."""


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return 5 if quick else CASES


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """A row for each application: the best duration, and those of the methods."""
    rows = []
    for case in range(runs(quick)):
        random = np.random.default_rng((seed, case))
        application, machine = _application(random), Machine(gpus=4, loading=_loading(random))
        lengths = {model: LengthDistribution.of(random.integers(1, 200, 50)) for model in MODELS}
        columns = columns_of(application)
        workload = drawn(columns, lengths, machine.shapes, random)
        found = {method: search(Timeline(machine, workload), method).ends_s for method in METHODS}
        timeline = Timeline(machine, workload)
        best = exhaustive_stages(timeline, found["ours"] * (1 - 1e-9))
        best_s = found["ours"] if best is None else simulated(timeline, "best", best).ends_s
        rows.append({"nodes": len(application.nodes), "best_s": best_s, "methods_s": found})
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the results."""
    print_table(
        console,
        f"Simulated: {len(rows)} random applications of 2 or 3 models on 4 GPUs, against the best "
        "sequence of stages that end when a model finishes",
        ["method", "best found", "mean", "p90", "worst"],
        [[method, *_distance(rows, method)] for method in METHODS],
        "Distance of the planned duration from that of an exhaustive search.",
    )


def _distance(rows: Sequence[dict[str, Any]], method: str) -> list[str]:
    over = np.array([row["methods_s"][method] / row["best_s"] - 1 for row in rows])
    statistics = (over.mean(), np.quantile(over, 0.9), over.max())
    return [f"{100 * (over < 1e-6).mean():.0f} %", *(f"{100 * each:.1f} %" for each in statistics)]


def _loading(random: np.random.Generator) -> LoadingTime:
    return SHORT_LOADS if random.random() < 0.5 else LoadingTime()


def _application(random: np.random.Generator) -> Application:
    count = int(random.integers(2, 4))
    nodes, sources = [], {}
    for index in range(count):
        needs_other = index > 0 and random.random() < 0.4
        is_chain = not needs_other and random.random() < 0.3
        items = int(random.integers(5, 150))
        parts = int(random.integers(2, 6)) if is_chain else 1
        source, other = f"s{index}", f"n{int(random.integers(index))}" if needs_other else ""
        if not needs_other:
            sources[source] = tuple(
                Item(f"{key}", tuple(random.integers(1, 300, parts).tolist()))
                for key in range(items)
            )
        model = MODELS[int(random.integers(len(MODELS)))]
        nodes.append(Node(f"n{index}", model, (other or source,), chain=is_chain))
    return Application("random", sources, tuple(nodes))
