"""Section `links`: what the bandwidth between instances is worth, with and without overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.paper import pairs
from metropolis.bench.droidspeak.simulate import Cluster, at_rate, plan_for, serve
from metropolis.bench.droidspeak.tables import print_table
from metropolis.trace.generate.histories import BASE, CHAT, workload

KIND = "simulated"
PER_S = 0.15
GBIT_PER_S = (25.0, 50.0, 100.0, 200.0, 400.0)


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(pairs(quick)) * len(_links(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each pair and bandwidth."""
    rows = []
    drawn = workload("documents", 20 if quick else 150, 1.0, seed)
    for pair in pairs(quick):
        plans = (plan_for(pair, CHAT),)
        instances = {BASE: 1, CHAT: 1}
        rate = at_rate(drawn, PER_S)
        full_s = serve(rate, Cluster(instances, "prefix", plans, pair.profile)).ttft_mean_s
        for link in _links(quick):
            row: dict[str, Any] = {"receiver": pair.receiver, "link_gbit_per_s": link}
            for name, overlapped in (("overlapped_s", True), ("in_turn_s", False)):
                cluster = Cluster(
                    instances, "droidspeak", plans, pair.profile, "least_used", link, overlapped
                )
                served = serve(rate, cluster)
                row |= {name: served.ttft_mean_s, "moved_gb": served.moved_gb}
            rows.append(row | {"full_s": full_s})
            advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    print_table(
        console,
        "Simulated: the link between instances",
        ["receiver", "Gbit/s", "full prefill", "overlapped", "faster", "in turn", "faster"],
        (
            (
                row["receiver"],
                f"{row['link_gbit_per_s']:g}",
                f"{row['full_s']:.2f}",
                f"{row['overlapped_s']:.2f}",
                f"{row['full_s'] / row['overlapped_s']:.2f} x",
                f"{row['in_turn_s']:.2f}",
                f"{row['full_s'] / row['in_turn_s']:.2f} x",
            )
            for row in rows
        ),
        f"Mean TTFT in s, one instance per model, {PER_S:g} programs per s. The transfer overlaps "
        "with the prefill, or precedes it.",
    )


def _links(quick: bool) -> Sequence[float]:
    return GBIT_PER_S[::4] if quick else GBIT_PER_S
