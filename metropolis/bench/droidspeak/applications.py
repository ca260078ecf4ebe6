"""Section `applications`: Kairos' and DroidSpeak's applications, three models of one foundation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from metropolis.bench.droidspeak.simulate import REUSES, Cluster, at_rate, saturated_per_s, serve
from metropolis.bench.droidspeak.tables import print_table
from metropolis.trace.generate.histories import APPLICATIONS, BASE, CHAT, EXPERT, workload

KIND = "simulated"
INSTANCES = 2
LOAD = 0.7
NAMES = tuple(name for name in APPLICATIONS if name != "documents")


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_names(quick))


def measure(quick: bool, seed: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """One row for each application and reuse."""
    rows = []
    hosted = dict.fromkeys((BASE, CHAT, EXPERT), INSTANCES)
    for name in _names(quick):
        drawn = workload(name, 30 if quick else 300, 1.0, seed)
        saturated = saturated_per_s(drawn, Cluster(hosted, "prefix"))
        calls = [call for program in drawn for call in program.calls]
        cell = {
            "application": name,
            "prompt_tokens": sum(call.prompt_tokens for call in calls) / len(calls),
            "output_tokens": sum(call.output_tokens for call in calls) / len(calls),
        }
        for reuse in REUSES:
            rate = at_rate(drawn, LOAD * saturated)
            served = serve(rate, Cluster(hosted, reuse, dispatcher="prefix"))
            rows.append(cell | {"reuse": reuse} | asdict(served))
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    found = {(row["application"], row["reuse"]): row for row in rows}
    print_table(
        console,
        "Simulated: applications with one growing history, three models",
        [
            "", "tokens of a\nprompt / answer", "base's\ncache", "own\ncache",
            "TTFT, s\nprefix / droidspeak", "faster", "program, s\nprefix / dr.", "faster",
        ],
        (
            (
                name,
                f"{with_['prompt_tokens']:,.0f} / {with_['output_tokens']:,.0f}",
                f"{with_['reused_share']:.0%}",
                f"{with_['own_share']:.0%}",
                f"{without['ttft_mean_s']:.3f} / {with_['ttft_mean_s']:.3f}",
                f"{without['ttft_mean_s'] / with_['ttft_mean_s']:.2f} x",
                f"{without['program_mean_s']:.2f} / {with_['program_mean_s']:.2f}",
                f"{without['program_mean_s'] / with_['program_mean_s']:.3f} x",
            )
            for name in dict.fromkeys(row["application"] for row in rows)
            for without, with_ in [(found[name, "prefix"], found[name, "droidspeak"])]
        ),
        f"{INSTANCES} instances of each model, load {LOAD:g}, dispatcher prefix. TTFT of the calls "
        "of fine-tuned models; lengths are estimates.",
    )  # fmt: skip


def _names(quick: bool) -> Sequence[str]:
    return ("Reflexion",) if quick else NAMES
