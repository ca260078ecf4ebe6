"""Section `load`: time to first token and throughput over load, instances and dispatchers.

In `documents` a text is read by the foundation model and then by a fine-tuned one; nothing of one
model repeats, so only the other's cache helps, wherever a call is placed. In `Reflexion` functions
come again, and find what their own instance has kept if the dispatcher sends them there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.simulate import REUSES, Cluster, at_rate, saturated_per_s, serve
from metropolis.bench.droidspeak.tables import print_table
from metropolis.trace.generate.histories import BASE, CHAT, EXPERT, workload

KIND = "simulated"
MODELS = {"documents": (BASE, CHAT), "Reflexion": (BASE, CHAT, EXPERT)}
DISPATCHERS = ("least_used", "prefix")
LOADS = (0.3, 0.6, 0.8, 1.0, 1.5)
INSTANCES = (1, 2, 4, 8)
Cell = tuple[str, str, int, float]
"""Application, dispatcher, instances per model, load."""


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_cells(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each cell and reuse."""
    rows = []
    for application, dispatcher, instances, load in _cells(quick):
        drawn = workload(application, (20 if quick else 120) * instances, 1.0, seed)
        hosted = dict.fromkeys(MODELS[application], instances)
        cluster = Cluster(hosted, "none", dispatcher=dispatcher)
        full_per_s = saturated_per_s(drawn, cluster)
        for reuse in REUSES:
            found = serve(at_rate(drawn, load * full_per_s), replace(cluster, reuse=reuse))
            cell = {"application": application, "dispatcher": dispatcher, "instances": instances}
            rows.append(cell | {"load": load, "reuse": reuse} | asdict(found))
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table for each application and dispatcher."""
    found: dict[tuple[str, str], dict[tuple[int, float], list[dict[str, Any]]]] = {}
    for row in rows:
        table = found.setdefault((row["application"], row["dispatcher"]), {})
        table.setdefault((row["instances"], row["load"]), []).append(row)
    for (application, dispatcher), cells in found.items():
        print_table(
            console,
            f"Simulated: {application} over load, dispatcher {dispatcher}",
            [
                *("instances\nper model", "load", *(f"TTFT, s\n{each}" for each in REUSES)),
                *("over\nprefix", *(f"per s\n{each}" for each in REUSES)),
            ],
            (
                (
                    f"{instances}",
                    f"{load:g}",
                    *(f"{each['ttft_mean_s']:.2f} / {each['ttft_p99_s']:.2f}" for each in of),
                    f"{of[1]['ttft_mean_s'] / of[2]['ttft_mean_s']:.2f} x",
                    *(f"{each['programs_per_s']:.2f}" for each in of),
                )
                for (instances, load), of in cells.items()
            ),
            "TTFT of the calls of fine-tuned models, mean / P99; programs served per s. Load 1: as "
            "many programs as the instances can serve without reuse.",
        )


def _cells(quick: bool) -> list[Cell]:
    if quick:
        return [("documents", "least_used", 1, 0.8)]
    over_load = product(MODELS, DISPATCHERS, (2,), LOADS)
    over_instances = product(("documents",), ("least_used",), INSTANCES, (0.8,))
    return sorted({*over_load, *over_instances})
