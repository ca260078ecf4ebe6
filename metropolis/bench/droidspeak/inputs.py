"""Section `inputs`: what it costs a sender to keep inputs (E) of layers beside its KV (§5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Console

from metropolis.bench.droidspeak.simulate import INSTRUCT, Cluster, at_rate, plan_for, serve
from metropolis.bench.droidspeak.tables import print_table
from metropolis.reuse.plan import Band, PlanPoint
from metropolis.sim.profiles import load_entry
from metropolis.trace.generate.histories import BASE, CHAT, workload

KIND = "simulated"
PROFILES = ("llama-3-8b/a100", "llama-3-8b/rtx-4090", "llama-3-70b/a100-tp4")
BANDS = (0, 1, 2, 4, 8)
PRESSED = "llama-3-8b/rtx-4090"
"""Its KV holds about four texts."""
PER_S = 0.3


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_bands(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each number of bands; each starts from one input."""
    rows = []
    drawn = at_rate(workload("documents", 20 if quick else 200, 1.0, seed), PER_S)
    for bands in _bands(quick):
        entries = [load_entry(profile) for profile in PROFILES]
        capacity = {
            each.name: each.keeping_inputs(bands).profile.kv_capacity_tokens for each in entries
        }
        served = serve(drawn, Cluster({BASE: 1, CHAT: 1}, "droidspeak", (_plan(bands),), PRESSED))
        rows.append(
            {
                "inputs": bands,
                "capacity_tokens": capacity,
                "share_left": {
                    each.name: capacity[each.name] / each.profile.kv_capacity_tokens
                    for each in entries
                },
                "reused_share": served.reused_share,
                "program_mean_s": served.program_mean_s,
            }
        )
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    print_table(
        console,
        "Simulated: KV capacity of a sender that keeps E of so many layers, in tokens and as a "
        f"share of its own; and long texts on {PRESSED}, {PER_S:g} per s",
        ["layers\nwhose E is kept", *PROFILES, "reused", "program, s"],
        (
            (
                f"{row['inputs']}",
                *(
                    f"{row['capacity_tokens'][name]:,} {row['share_left'][name]:.0%}"
                    for name in PROFILES
                ),
                f"{row['reused_share']:.1%}",
                f"{row['program_mean_s']:.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip


def _bands(quick: bool) -> Sequence[int]:
    return BANDS[::4] if quick else BANDS


def _plan(bands: int) -> Any:
    """A plan of 16 recomputed layers in so many bands; without one they begin at layer 0."""
    plan = plan_for(INSTRUCT, CHAT)
    width = 16 // max(1, bands)
    found = tuple(Band(1 + 2 * width * n, 2 * width * n + width) for n in range(bands))
    point = PlanPoint(found or (Band(0, 15),), plan.receiver_quality, 0.5)
    return msgspec.structs.replace(plan, points=(point,))
