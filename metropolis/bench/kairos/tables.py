"""Tables of `metropolis bench kairos`: our results over all seeds beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench.kairos.measure import TAILS, Measured
from metropolis.bench.kairos.paper import ACCURACY, SCENARIOS, Bands


@dataclass(frozen=True)
class OverSeeds:
    """The mean of one figure, and its standard deviation (0 for one seed)."""

    mean: float
    spread: float

    @classmethod
    def of(cls, values: Iterable[float]) -> OverSeeds:
        """Summarize the values of the seeds."""
        found = np.array([*values])
        return cls(float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0)


@dataclass(frozen=True)
class Lower:
    """Reduction of one latency by Kairos, in per cent, at every load."""

    application: str
    than: str
    which: str
    """`average`, or a tail like `P90`."""
    by_load: dict[float, OverSeeds]
    paper: tuple[float, float] | None


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
                by_load = {
                    load: OverSeeds.of(
                        100 * (1 - ours.latency_ms(which) / theirs.latency_ms(which))
                        for ours, theirs in zip(
                            runs[application, load, "Kairos"],
                            runs[application, load, than],
                            strict=True,
                        )
                    )
                    for load in loads
                }
                found.append(Lower(application, than, which, by_load, published.get(which)))
    return found


_NO_BANDS: Bands = {"Parrot": {}, "Ayo": {}}


def accuracies(measured: Sequence[Measured]) -> dict[str, OverSeeds]:
    """Return system -> per cent of pairs in the right order, weighted as the paper's scenarios.

    Of the applications measured; averaged over loads.
    """
    applications = list(dict.fromkeys(one.application for one in measured))
    weights = [SCENARIOS[application] for application in applications]

    def weighted(seed: int, system: str) -> float:
        of = [one for one in measured if one.seed == seed and one.system == system]
        each = [
            np.mean([one.accuracy for one in of if one.application == application])
            for application in applications
        ]
        return float(100 * np.average(each, weights=weights))

    seeds = dict.fromkeys(one.seed for one in measured)
    return {system: OverSeeds.of(weighted(seed, system) for seed in seeds) for system in ACCURACY}


def show(measured: Sequence[Measured], bands: dict[str, Bands], console: Console) -> None:
    """Print latencies, Kairos' reductions and accuracies."""
    console.print(_latencies(measured))
    console.print(_lower(reductions(measured, bands)))
    for line in _accuracy(measured):
        console.print(line, soft_wrap=True)


def _table(title: str, left: Sequence[str], right: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _latencies(measured: Sequence[Measured]) -> Table:
    title = "Latency, ms per output token of a program; ±: standard deviation over seeds"
    right = (
        "load",
        "queueing",
        "average",
        "±",
        *(f"P{tail}" for tail in TAILS),
        "preempted",
        "in order",
    )
    table = _table(title, ("", "system"), right)
    for (application, load, system), seeds in runs_of(measured).items():
        average = OverSeeds.of(one.average_ms for one in seeds)
        table.add_row(
            application,
            system,
            f"{load:g}",
            f"{np.mean([one.queueing_share for one in seeds]):.0%}",
            f"{average.mean:.0f}",
            f"{average.spread:.0f}",
            *(f"{np.mean([one.tails_ms[tail] for one in seeds]):.0f}" for tail in TAILS),
            f"{np.mean([one.preemptions for one in seeds]):.0f}",
            f"{np.mean([one.accuracy for one in seeds]):.1%}",
        )
    return table


def _lower(found: Sequence[Lower]) -> Table:
    loads = [f"{load:g}" for load in found[0].by_load]
    title = "Kairos is lower by, %, at each load; ±: largest standard deviation over seeds"
    table = _table(title, ("", "than", "latency"), (*loads, "±", "paper"))
    for one in found:
        table.add_row(
            one.application,
            one.than,
            one.which,
            *(f"{by.mean:.0f}" for by in one.by_load.values()),
            f"{max(by.spread for by in one.by_load.values()):.0f}",
            f"{one.paper[0]} to {one.paper[1]}" if one.paper else "",
        )
    return table


def _accuracy(measured: Sequence[Measured]) -> Iterator[str]:
    for system, found in accuracies(measured).items():
        yield (
            f"{system}: {found.mean:.1f} ± {found.spread:.1f} % of pairs in the right order "
            f"(paper: {ACCURACY[system]} %)"
        )
