"""Section `load`: time to first token and throughput over load, instances and dispatchers.

As in `prefill`, but each model has as many instances. The load is a share of the rate at which the
foundation model's instances are always busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.simulate import REUSES, Cluster, at_rate, serve
from metropolis.bench.droidspeak.tables import print_table
from metropolis.trace.generate.histories import BASE, EXPERT, MODELS, workload

KIND = "simulated"
DISPATCHERS = ("least_used", "prefix")
LOADS = (0.3, 0.6, 0.8, 1.0, 1.5)
INSTANCES = (1, 2, 4, 8)
SATURATED_PER_S = 1000.0


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_cells(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each number of instances, load, dispatcher and reuse."""
    rows = []
    for instances, load, dispatcher, reuse in _cells(quick):
        models = {**MODELS, "answerer": EXPERT}
        drawn = workload("documents", (20 if quick else 150) * instances, 1.0, seed, models)
        cluster = Cluster({BASE: instances, EXPERT: instances}, reuse, dispatcher=dispatcher)
        saturated = serve(at_rate(drawn, SATURATED_PER_S), replace(cluster, reuse="none"))
        found = serve(at_rate(drawn, load * saturated.programs_per_s), cluster)
        cell = {"instances": instances, "load": load, "dispatcher": dispatcher, "reuse": reuse}
        rows.append(cell | asdict(found))
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table for each dispatcher."""
    found = {(row["dispatcher"], row["instances"], row["load"], row["reuse"]): row for row in rows}
    for dispatcher in dict.fromkeys(row["dispatcher"] for row in rows):
        cells = dict.fromkeys((n, load) for d, n, load, _ in found if d == dispatcher)
        print_table(
            console,
            f"Simulated: TTFT of MAmmoTH2's calls after Llama-3-8B's, mean / P99 in s, and "
            f"programs served per s; dispatcher {dispatcher}",
            [
                "instances\nper model",
                "load",
                *(f"TTFT\n{each}" for each in REUSES),
                "faster",
                *(f"per s\n{each}" for each in REUSES),
            ],
            (
                (
                    f"{instances}",
                    f"{load:g}",
                    *(f"{each['ttft_mean_s']:.2f} / {each['ttft_p99_s']:.2f}" for each in of),
                    f"{of[1]['ttft_mean_s'] / of[2]['ttft_mean_s']:.2f} x",
                    *(f"{each['programs_per_s']:.2f}" for each in of),
                )
                for instances, load in cells
                for of in [[found[dispatcher, instances, load, reuse] for reuse in REUSES]]
            ),
        )


def _cells(quick: bool) -> list[tuple[int, float, str, str]]:
    if quick:
        return list(product((1,), (0.8,), DISPATCHERS[:1], REUSES))
    one = product((2,), LOADS, DISPATCHERS, REUSES)
    other = product(INSTANCES, (0.8,), DISPATCHERS, REUSES)
    return sorted({*one, *other}, key=lambda cell: (cell[2], cell[0], cell[1]))
