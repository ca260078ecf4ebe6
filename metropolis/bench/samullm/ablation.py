"""Section `ablation`: without preemption, and with lengths known in advance (§5.5, Fig. 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from metropolis.bench.droidspeak.tables import print_table
from metropolis.bench.samullm.comparison import DRAWS, Comparison, measured
from metropolis.bench.samullm.paper import chain_summary, ensembling, mixed

KIND = "simulated"
METHODS = ("ours", "greedy", "greedy-no-preemption", "min", "min-no-preemption")
LIMITS = (256, 512)


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_limits(quick)) * (1 + _draws(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """For each limit a row without and one with known lengths."""
    rows = []
    for limit in _limits(quick):
        application = mixed(500, 5000, limit)
        comparison = Comparison.of(application, seed, _draws(quick))
        unknown = measured(comparison, METHODS)
        advance(1)
        known: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
        for truth in comparison.truths:
            alone = replace(comparison, truths=(truth,))
            for method, each in measured(alone, METHODS, truth.workload).items():
                known[method].append(each)
            advance(1)
        parts = [ensembling(5000, limit), chain_summary(500, 4, 900)]
        apart = [measured(Comparison.of(part, seed, 2), ["ours"])["ours"] for part in parts]
        rows.append(
            {
                "setting": application.name,
                "unknown": unknown,
                "known": {method: _mean(each) for method, each in known.items()},
                "one_after_another_s": sum(each["end_to_end_s"] for each in apart),
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the results."""
    cells = []
    for row in rows:
        ours = row["unknown"]["ours"]["end_to_end_s"]
        for lengths in ("unknown", "known"):
            times = [row[lengths][method]["end_to_end_s"] for method in METHODS]
            errors = 100 * row[lengths]["ours"]["error"]
            cells.append(
                [
                    f"{row['setting']}, {lengths}",
                    f"{times[0]:.0f}",
                    *(f"{time / ours:.2f}" for time in times[1:]),
                    f"{errors:.1f} %",
                    f"{row['one_after_another_s'] / ours:.2f}",
                ]
            )
    print_table(
        console,
        "Simulated: ablation (Fig. 14)",
        ["setting, lengths", "ours", "greedy", "fixed", "min", "min fixed", "estimate", "apart"],
        cells,
        "ours in seconds with its search; others relative to ours with unknown lengths. fixed: "
        "without preemption. estimate: mean error of ours. apart: the two applications one after "
        "the other, by ours. The paper: without preemption 1.0 to 1.2 (greedy) and 1.3 to 1.4 "
        "(min) times as slow, known lengths 0.9 to 1.0, apart 1.0 to 1.2.",
    )


def _limits(quick: bool) -> Sequence[int]:
    return LIMITS[:1] if quick else LIMITS


def _draws(quick: bool) -> int:
    return 1 if quick else DRAWS


def _mean(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    keys = ("estimate_s", "search_s", "inference_s", "end_to_end_s", "error")
    return {key: float(np.mean([each[key] for each in results])) for key in keys}
