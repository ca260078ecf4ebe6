"""Section `division`: the same instances, divided among the models as suits each reuse best.

With as many instances for each model, the foundation model limits the throughput, because its own
prefills stay as they were. Reuse saves instances of the fine-tuned models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.paper import PAIRS, PaperPair
from metropolis.bench.droidspeak.simulate import Cluster, plan_for, saturated_per_s
from metropolis.bench.droidspeak.tables import print_table
from metropolis.trace.generate.histories import BASE, workload
from metropolis.trace.programs import Program

KIND = "simulated"
INSTANCES = 8
RECEIVERS = (1, 2, 4)
"""Fine-tuned models that answer about each text."""


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return sum(len(list(_divisions(receivers, quick))) for _, receivers in _cells(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each pair and number of receivers."""
    rows = []
    for pair, receivers in _cells(quick):
        names = [f"receiver {number}" for number in range(receivers)]
        programs = _fan_out(20 if quick else 200, seed, names)
        plans = tuple(plan_for(pair, name) for name in names)
        best: dict[str, tuple[float, dict[str, int]]] = {}
        for instances in _divisions(receivers, quick):
            hosted = dict(zip((BASE, *names), instances, strict=True))
            for reuse in ("prefix", "droidspeak"):
                per_s = saturated_per_s(programs, Cluster(hosted, reuse, plans, pair.profile))
                if per_s > best.get(reuse, (0.0, hosted))[0]:
                    best[reuse] = per_s, hosted
            advance(1)
        share = plans[0].points[0].prefill_share
        row: dict[str, Any] = {"receiver": pair.receiver, "receivers": receivers}
        for reuse, (per_s, hosted) in best.items():
            row |= {f"{reuse}_per_s": per_s, f"{reuse}_instances": list(hosted.values())}
        rows.append(
            row
            | {
                "ratio": best["droidspeak"][0] / best["prefix"][0],
                "ideal": (1 + receivers) / (1 + receivers * share),
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    print_table(
        console,
        f"Simulated: {INSTANCES} instances, divided as suits each reuse best",
        [
            "receiver",
            "receivers",
            "prefix",
            "instances",
            "droidspeak",
            "instances",
            "ratio",
            "ideal",
        ],
        (
            (
                row["receiver"],
                f"{row['receivers']}",
                f"{row['prefix_per_s']:.2f}",
                "+".join(map(str, row["prefix_instances"])),
                f"{row['droidspeak_per_s']:.2f}",
                "+".join(map(str, row["droidspeak_instances"])),
                f"{row['ratio']:.2f} x",
                f"{row['ideal']:.2f} x",
            )
            for row in rows
        ),
        "Programs per s, saturated; all receivers answer about each text. Instances: of the "
        "foundation model + of each receiver; they are whole, so a ratio may pass the ideal, "
        "which is that of the prefill work.",
    )


def _cells(quick: bool) -> list[tuple[PaperPair, int]]:
    pairs = PAIRS[3:] if quick else (PAIRS[0], PAIRS[3])
    return [(pair, receivers) for pair in pairs for receivers in RECEIVERS[: 1 if quick else None]]


def _divisions(receivers: int, quick: bool) -> Iterator[tuple[int, ...]]:
    """Instances of the foundation model and of each receiver, which differ by at most one."""
    for base in (4, 5) if quick else range(1, INSTANCES - receivers + 1):
        each, more = divmod(INSTANCES - base, receivers)
        yield base, *(each + (number < more) for number in range(receivers))


def _fan_out(programs: int, seed: int, names: Sequence[str]) -> list[Program]:
    """Each text is read by the foundation model, then by all receivers at once."""
    found = []
    for program in workload("documents", programs, 1.0, seed):
        reader, answerer = program.calls
        calls = (reader, *(replace(answerer, model=name) for name in names))
        found.append(replace(program, calls=calls))
    return found
