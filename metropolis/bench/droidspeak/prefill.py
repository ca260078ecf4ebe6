"""Section `prefill`: the paper's pairs, alone and under load, beside its figures.

The foundation model reads a text of about 10,400 tokens and answers; then the fine-tuned model
answers about the same text. It has one instance and the foundation model four, so that the fine-
tuned one is what limits the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.paper import PaperPair, pairs
from metropolis.bench.droidspeak.simulate import (
    Cluster,
    at_rate,
    most_per_s,
    plan_for,
    saturated_per_s,
    serve,
)
from metropolis.bench.droidspeak.tables import print_table
from metropolis.trace.generate.histories import BASE, CHAT, workload

KIND = "simulated"
LIMITS = (1.5, 2.0, 3.0)
"""TTFTs within which the rate is sought, as multiples of a lone full prefill's."""
ALONE_PER_S = 0.001
PAPER_PREFILL, PAPER_THROUGHPUT = 3.1, 4.0
"""Maximum speed-up of prefills, and maximum gain of throughput (NSDI'26)."""


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(pairs(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each pair."""
    rows = []
    for pair in pairs(quick):
        rows.append(_row(pair, 40 if quick else 300, seed))
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    headings = ["receiver", "layers\nreused", "TTFT alone, s\nfull / reuse", "faster", "paper"]
    headings += [*(f"rate at\n{limit:g} x" for limit in LIMITS), "satu-\nrated"]
    print_table(
        console,
        "Simulated: the paper's pairs, prefill and rate",
        headings,
        (
            (
                row["receiver"],
                f"{row['reused_layers']}/{row['layers']}",
                f"{row['full_ttft_s']:.2f} / {row['reuse_ttft_s']:.2f}",
                f"{row['speedup']:.2f} x",
                "–".join(f"{each:.2f}" for each in dict.fromkeys(row["paper_speedup"])),
                *(f"{row['rate_ratio'][f'{limit:g}']:.2f} x" for limit in LIMITS),
                f"{row['saturated_ratio']:.2f} x",
            )
            for row in rows
        ),
        "Rate: how many times as many requests a receiver serves with reuse, while their mean TTFT "
        "is at most this multiple of a lone full prefill, or without a limit (saturated). Paper: "
        "Table 2 of its first version; the later one reports prefills up to "
        f"{PAPER_PREFILL:g} x as fast, and up to {PAPER_THROUGHPUT:g} x the throughput.",
    )


def _row(pair: PaperPair, programs: int, seed: int) -> dict[str, Any]:
    drawn = workload("documents", programs, 1.0, seed)
    full, reuse = (
        Cluster({BASE: 4, CHAT: 1}, name, (plan_for(pair, CHAT),), pair.profile)
        for name in ("prefix", "droidspeak")
    )
    alone = at_rate(drawn, ALONE_PER_S)
    full_s, reuse_s = (serve(alone, each).ttft_mean_s for each in (full, reuse))
    full_most, reuse_most = (saturated_per_s(drawn, each) for each in (full, reuse))
    rates = {
        f"{limit:g}": [
            most_per_s(drawn, each, limit * full_s, 4 / full_s) for each in (full, reuse)
        ]
        for limit in LIMITS
    }
    return {
        "receiver": pair.receiver,
        "layers": pair.layers,
        "reused_layers": pair.reused_layers,
        "profile": pair.profile,
        "full_ttft_s": full_s,
        "reuse_ttft_s": reuse_s,
        "speedup": full_s / reuse_s,
        "paper_speedup": pair.speedups,
        "full_per_s": {limit: each[0] for limit, each in rates.items()},
        "reuse_per_s": {limit: each[1] for limit, each in rates.items()},
        "saturated_ratio": reuse_most / full_most,
        "rate_ratio": {limit: each[1] / each[0] for limit, each in rates.items() if each[0]},
    }
