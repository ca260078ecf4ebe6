"""`metropolis bench fidelity`: compare a real serving run with its simulation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from metropolis.bench._real_run import Run, read_run, request_metrics, simulate_run
from metropolis.bench._sensitivity import STATISTICS, Engine, predictions, sensitivity
from metropolis.names import counted
from metropolis.sim.engine_rules import ENGINE_RULES
from metropolis.sim.profiles import load_entry
from metropolis.tables import plain_console, print_whole


@dataclass(frozen=True)
class Comparison:
    """One statistic of one metric."""

    real: float
    simulated: float

    @property
    def error(self) -> float | None:
        """The relative error; None if `real` is 0."""
        return self.simulated / self.real - 1 if self.real else None


def compare(run: Run, engine: Engine) -> tuple[dict[str, Comparison], int]:
    """Simulate the run on one instance; return the statistics by name, and the preemptions.

    Metrics: see `request_metrics`.
    """
    real = request_metrics(run, run.first_token_s, run.last_token_s)
    ours, preemptions = simulate_run(run, engine.profile, engine.options)
    comparisons = {}
    for metric in real:
        if not len(real[metric]):
            continue
        comparisons[f"{metric}_mean_s"] = Comparison(
            float(real[metric].mean()), float(ours[metric].mean())
        )
        for percent in (50, 99):
            comparisons[f"{metric}_p{percent}_s"] = Comparison(
                float(np.percentile(real[metric], percent)),
                float(np.percentile(ours[metric], percent)),
            )
    return comparisons, preemptions


@click.command("fidelity")
@click.argument("run_path", metavar="RUN.csv[.gz]", type=click.Path(path_type=Path))
@click.option("--profile", required=True, help="Name or TOML file.")
@click.option(
    "--engine-rules",
    type=click.Choice(list(ENGINE_RULES)),
    default="vllm",
    show_default=True,
    help="Engine whose scheduling rules are simulated.",
)
@click.option("--kv-tokens", type=click.IntRange(1), help="Override the KV capacity.")
@click.option("--chunk-tokens", type=click.IntRange(1), help="Override new tokens per iteration.")
@click.option("--max-sequences", type=click.IntRange(1), help="Override running sequences.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    run_path: Path,
    profile: str,
    engine_rules: str,
    kv_tokens: int | None,
    chunk_tokens: int | None,
    max_sequences: int | None,
    as_json: bool,
) -> None:
    """Simulate a real serving run and print the error of the simulation.

    Two further tables tell how the simulated run changes with its profile, and what the other
    profiles of the model predict for the same requests.

    RUN has one row per request: queued_s, input_tokens, output_tokens, first_token_s and
    last_token_s, the times in seconds since the first request was queued.
    """
    entry = load_entry(profile)
    base = entry.profile
    base.kv_capacity_tokens = kv_tokens or base.kv_capacity_tokens
    base.max_sequences = max_sequences or base.max_sequences
    simulated = Engine.of(engine_rules, base)
    simulated.profile.chunk_tokens = chunk_tokens or simulated.profile.chunk_tokens
    run = read_run(run_path)
    comparisons, preemptions = compare(run, simulated)
    result: dict[str, Any] = {
        "run": str(run_path),
        "profile": entry.name,
        "estimate": entry.estimate,
        "engine_rules": engine_rules,
        "rules": ENGINE_RULES[engine_rules].source,
        "kv_capacity_tokens": base.kv_capacity_tokens,
        "chunk_tokens": simulated.profile.chunk_tokens,
        "max_sequences": base.max_sequences,
        "requests": len(run.row),
        "requests_without_output": run.without_output,
        "preemptions": preemptions,
        "metrics": {
            name: {"real": c.real, "simulated": c.simulated, "error": c.error}
            for name, c in comparisons.items()
        },
        "sensitivity": sensitivity(run, simulated),
        "predictions": [asdict(row) for row in predictions(run, entry, simulated)],
    }
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    kind = "an estimate" if entry.estimate else "measured"
    table = Table(
        title=f"{counted(len(run.row), 'request')} on {entry.name} ({kind}; "
        f"{base.kv_capacity_tokens:,} KV tokens, {counted(preemptions, 'preemption')} simulated; "
        f"rules of {engine_rules})",
        caption=f"{counted(run.without_output, 'request')} without output left out"
        if run.without_output
        else None,
    )
    table.add_column("seconds")
    for column in ("real", "simulated", "error"):
        table.add_column(column, justify="right")
    for name, c in comparisons.items():
        error = "" if c.error is None else f"{c.error:+.1%}"
        table.add_row(name.removesuffix("_s"), f"{c.real:.4f}", f"{c.simulated:.4f}", error)
    console = plain_console()
    print_whole(table, console)
    _print_sensitivity(console, result)


def _print_sensitivity(console: Console, result: dict[str, Any]) -> None:
    changes = Table(title=f"Change of the simulated run with {result['profile']}")
    predicted = Table(
        title="The same requests on other profiles "
        f"(simulated, s; rules of {result['engine_rules']})",
        caption="blank: no value, or a request does not fit into the KV memory",
    )
    changes.add_column("change")
    predicted.add_column("profile")
    for table in (changes, predicted):
        for name in STATISTICS:
            table.add_column(name.removesuffix("_s").replace("_", " "), justify="right")
    predicted.add_column("rests on")
    sources = Table.grid(padding=(0, 1))
    for name, row in result["sensitivity"].items():
        changes.add_row(name, *("" if v is None else f"{v:+.1%}" for v in row.values()))
    for row in result["predictions"]:
        values = ("" if v is None else f"{v:.4g}" for v in row["seconds"].values())
        kind = "estimate" if row["estimate"] else "measured"
        name = row["profile"].partition("/")[2]
        predicted.add_row(name, *values, kind)
        sources.add_row(name, " ".join(row["source"].split()))
    print_whole(changes, console)
    if result["predictions"]:
        print_whole(predicted, console)
        console.print(sources)
