"""Tables of `metropolis bench kairos`: our results over all seeds beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench._spread import OverSeeds
from metropolis.bench.kairos.measure import TAILS, Measured
from metropolis.bench.kairos.paper import ACCURACY, SCENARIOS, Bands
from metropolis.tables import print_whole


@dataclass(frozen=True)
class Lower:
    """Reduction of one latency by Kairos, in per cent, at every load (see `Measured.load`)."""

    application: str
    than: str
    which: str
    """`average`, or a tail like `P90`."""
    by_load: dict[float, OverSeeds]
    mean: OverSeeds | None
    """Over the loads from MEAN_FROM on; None: there are none."""
    paper: tuple[float, float] | None


MEAN_FROM = 10.0
"""Per cent of queueing below which there is hardly anything to gain."""


def runs_of(measured: Sequence[Measured]) -> dict[tuple[str, float, str], list[Measured]]:
    """Group the runs: (application, load, system) -> one per seed."""
    runs: dict[tuple[str, float, str], list[Measured]] = {}
    for one in measured:
        runs.setdefault((one.application, one.load, one.system), []).append(one)
    return runs


def reductions(measured: Sequence[Measured], bands: dict[str, Bands]) -> list[Lower]:
    """Return Kairos' reductions: those of the paper, and of the average by each ablation."""
    runs, found = runs_of(measured), []
    loads = list(dict.fromkeys(load for _, load, _ in runs))
    for application in dict.fromkeys(application for application, _, _ in runs):
        everywhere: Bands = {"no priority": {}, "no packing": {}}
        for than, published in (everywhere | bands.get(application, _NO_BANDS)).items():
            for which in published or ("average",):
                lower = {
                    load: [
                        100 * (1 - ours.latency_ms(which) / theirs.latency_ms(which))
                        for ours, theirs in zip(
                            runs[application, load, "Kairos"],
                            runs[application, load, than],
                            strict=True,
                        )
                    ]
                    for load in loads
                }
                by_load = {load: OverSeeds.of(seeds) for load, seeds in lower.items()}
                queued = [seeds for load, seeds in lower.items() if load >= MEAN_FROM]
                mean = OverSeeds.of(np.mean(queued, axis=0)) if queued else None
                found.append(Lower(application, than, which, by_load, mean, published.get(which)))
    return found


_NO_BANDS: Bands = {"Parrot": {}, "Ayo": {}}


def accuracies(measured: Sequence[Measured]) -> dict[str, dict[float, OverSeeds]]:
    """Return system -> load -> per cent of pairs in the right order.

    Weighted as the paper's scenarios, of the applications measured.
    """
    found: dict[str, dict[float, OverSeeds]] = {system: {} for system in ACCURACY}
    runs = runs_of(measured)
    loads = dict.fromkeys(load for _, load, _ in runs)
    applications = list(dict.fromkeys(application for application, _, _ in runs))
    weights = [SCENARIOS[application] for application in applications]
    for system, load in product(ACCURACY, loads):
        each = [[one.accuracy for one in runs[a, load, system]] for a in applications]
        found[system][load] = OverSeeds.of(100 * np.average(each, axis=0, weights=weights))
    return found


def show(measured: Sequence[Measured], bands: dict[str, Bands], console: Console) -> None:
    """Print latencies, Kairos' reductions and accuracies."""
    print_whole(_latencies(measured), console)
    print_whole(_lower(reductions(measured, bands)), console)
    print_whole(_accuracy(accuracies(measured)), console)


def _table(title: str, left: Sequence[str], right: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _latencies(measured: Sequence[Measured]) -> Table:
    title = (
        "Latency, ms per output token of a program; load: queueing under Parrot; ±: standard "
        "deviation over seeds"
    )
    right = ("load", "queueing", "average", "±", *(f"P{tail}" for tail in TAILS), "preemptions")
    table = _table(title, ("", "system"), right)
    for (application, load, system), seeds in runs_of(measured).items():
        average = OverSeeds.of(one.average_ms for one in seeds)
        table.add_row(
            application,
            system,
            f"{load:g} %",
            f"{np.mean([one.queueing_share for one in seeds]):.0%}",
            f"{average.mean:.0f}",
            f"{average.spread:.0f}",
            *(f"{np.mean([one.tails_ms[tail] for one in seeds]):.0f}" for tail in TAILS),
            f"{np.mean([one.preemptions for one in seeds]):.0f}",
        )
    return table


def _lower(found: Sequence[Lower]) -> Table:
    loads = [f"{load:g} %" for load in found[0].by_load]
    title = (
        f"Kairos is lower by, %, at each load; mean: of the loads from {MEAN_FROM:g} % on; "
        "±: largest standard deviation over seeds"
    )
    table = _table(title, ("", "than", "latency"), (*loads, "±", "mean", "paper"))
    for one in found:
        table.add_row(
            one.application,
            one.than,
            one.which,
            *(f"{by.mean:.0f}" for by in one.by_load.values()),
            f"{max(by.spread for by in one.by_load.values()):.0f}",
            f"{one.mean.mean:.1f}" if one.mean else "",
            f"{one.paper[0]} to {one.paper[1]}" if one.paper else "",
        )
    return table


def _accuracy(found: dict[str, dict[float, OverSeeds]]) -> Table:
    loads = [f"{load:g} %" for load in next(iter(found.values()))]
    table = _table("Pairs in the right order, %, at each load", ("",), (*loads, "±", "paper"))
    for system, by_load in found.items():
        table.add_row(
            system,
            *(f"{by.mean:.1f}" for by in by_load.values()),
            f"{max(by.spread for by in by_load.values()):.1f}",
            f"{ACCURACY[system]}",
        )
    return table
