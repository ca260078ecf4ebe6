"""What holds over all settings of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from metropolis.bench.droidspeak.tables import print_table

HEURISTICS = ("max", "min")


def show_summary(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print it, if there are settings."""
    if not rows:
        return
    errors = np.array([error for row in rows for error in row["methods"]["ours"]["errors"]])
    others = np.array(
        [e for row in rows for each in row["methods"].values() for e in each["errors"]]
    )
    worst = max(rows, key=_over_better_heuristic)
    slowest = max(rows, key=lambda row: float(row["methods"]["ours"]["search_s"]))
    print_table(
        console,
        f"Simulated: all {len(rows)} settings",
        ["", ""],
        [
            ["error of the estimate, ours: mean, p90, most", _percent(errors)],
            ["error of the estimate, all methods: mean, p90, most", _percent(others)],
            [
                "ours relative to the better heuristic, at worst",
                f"{_over_better_heuristic(worst):.3f} ({worst['setting']})",
            ],
            [
                "longest search (measured)",
                f"{slowest['methods']['ours']['search_s']:.1f} s ({slowest['setting']})",
            ],
        ],
    )


def _over_better_heuristic(row: dict[str, Any]) -> float:
    return float(1 / min(row["ratio"][method] for method in HEURISTICS))


def _percent(errors: np.ndarray[Any, Any]) -> str:
    found = errors.mean(), np.quantile(errors, 0.9), errors.max()
    return ", ".join(f"{100 * each:.1f} %" for each in found)
