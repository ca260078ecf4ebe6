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
    errors = {
        method: np.array([error for row in rows for error in row["methods"][method]["errors"]])
        for method in rows[0]["methods"]
    }
    worst = max(rows, key=_over_better_heuristic)
    slowest = max(rows, key=lambda row: float(row["methods"]["ours"]["search_s"]))
    print_table(
        console,
        f"Simulated: all {len(rows)} settings",
        ["", ""],
        [
            *(
                [f"error of the estimate, {method}: mean, p90, most", _percent(each)]
                for method, each in errors.items()
            ),
            [
                "ours relative to the better heuristic, at worst",
                f"{_over_better_heuristic(worst):.3f} ({worst['setting']})",
            ],
            [
                "longest search (measured)",
                f"{slowest['methods']['ours']['search_s']:.1f} s ({slowest['setting']})",
            ],
        ],
        "Plans and runs draw lengths from the same distributions, and loading times are as "
        "planned; the paper plans with the lengths of another dataset.",
    )


def _over_better_heuristic(row: dict[str, Any]) -> float:
    return float(1 / min(row["ratio"][method] for method in HEURISTICS))


def _percent(errors: np.ndarray[Any, Any]) -> str:
    found = errors.mean(), np.quantile(errors, 0.9), errors.max()
    return ", ".join(f"{100 * each:.1f} %" for each in found)
