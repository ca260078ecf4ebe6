"""Section `inputs`: what it costs a sender to keep inputs (E) of layers beside its KV (§5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console

from metropolis.bench.droidspeak.simulate import INSTRUCT, Cluster, at_rate, plan_for, serve
from metropolis.bench.droidspeak.tables import print_table
from metropolis.reuse.plan import Band, Plan, PlanPoint
from metropolis.sim.profiles import load_entry
from metropolis.trace.generate.histories import BASE, CHAT, EXPERT, workload

KIND = "simulated"
PROFILES = ("llama-3-8b/a100", "llama-3-8b/rtx-4090", "llama-3-70b/a100-tp4")
INPUTS = (0, 1, 2, 4, 8)
PRESSED = "llama-3-8b/rtx-4090"
"""Its KV holds some five histories."""
PER_S = 0.07
TOKENS_MAX = 20_000
"""Programs with longer histories are left out: they do not fit beside eight inputs."""


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_inputs(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each number of layers whose inputs are kept."""
    rows = []
    drawn = [
        program
        for program in at_rate(workload("Reflexion", 30 if quick else 300, 1.0, seed), PER_S)
        if max(call.prompt_tokens + call.output_tokens for call in program.calls) <= TOKENS_MAX
    ]
    entries = [load_entry(profile) for profile in PROFILES]
    for inputs in _inputs(quick):
        capacity = {
            each.name: each.keeping_inputs(inputs).profile.kv_capacity_tokens for each in entries
        }
        plans = tuple(_plan(inputs, receiver) for receiver in (CHAT, EXPERT))
        hosted = dict.fromkeys((BASE, CHAT, EXPERT), 1)
        served = serve(drawn, Cluster(hosted, "droidspeak", plans, PRESSED))
        left = {
            each.name: capacity[each.name] / each.profile.kv_capacity_tokens for each in entries
        }
        row = {"inputs": inputs, "capacity_tokens": capacity, "share_left": left}
        rows.append(row | asdict(served))
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    print_table(
        console,
        "Simulated: KV capacity of a sender that keeps inputs (E)",
        ["layers\nkept", *PROFILES, "own\ncache", "base's\ncache", "TTFT\ns", "program\ns"],
        (
            (
                f"{row['inputs']}",
                *(
                    f"{row['capacity_tokens'][name]:,} {row['share_left'][name]:.0%}"
                    for name in PROFILES
                ),
                f"{row['own_share']:.1%}",
                f"{row['reused_share']:.1%}",
                f"{row['ttft_mean_s']:.2f}",
                f"{row['program_mean_s']:.1f}",
            )
            for row in rows
        ),
        "Tokens, and share of the capacity without inputs. The last columns: Reflexion on one "
        f"{PRESSED} per model, {PER_S:g} programs per s; caches as shares of the prompt tokens.",
    )


def _inputs(quick: bool) -> Sequence[int]:
    return INPUTS[::4] if quick else INPUTS


def _plan(inputs: int, receiver: str) -> Plan:
    """A plan that recomputes 16 layers in `inputs` bands; with 0, the first 16 layers."""
    plan = plan_for(INSTRUCT, receiver)
    width = 16 // max(1, inputs)
    bands = tuple(Band(1 + 2 * width * n, 2 * width * n + width) for n in range(inputs))
    point = PlanPoint(bands or (Band(0, 15),), plan.receiver_quality, 0.5)
    return msgspec.structs.replace(plan, points=(point,))
