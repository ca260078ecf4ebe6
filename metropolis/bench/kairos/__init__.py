"""`metropolis bench kairos`: Kairos beside Parrot and Ayo, simulated, beside the paper's figures.

Kairos §7: program-level token latency of three applications, separate and co-located, over loads,
with ablations and the accuracy of the order.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product

import click
from rich.console import Console

from metropolis.bench import INSTANCE, SEEDS, fleet_of
from metropolis.bench._in_processes import in_processes
from metropolis.bench.kairos.measure import Bench, Measured
from metropolis.bench.kairos.paper import ACCURACY, bands_of
from metropolis.bench.kairos.tables import accuracies, reductions, show
from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED

LOADS = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the rate that fills the fleet, see `busy_rate_per_s`."""
ALL = (*APPLICATIONS, CO_LOCATED)


def _measure(task: tuple[Bench, str, float]) -> list[Measured]:
    bench, application, load = task
    return bench.measure(application, load)


@click.command("kairos")
@click.option(
    "--application",
    "applications",
    type=click.Choice(ALL),
    multiple=True,
    help="May be repeated.  [default: all]",
)
@click.option(
    "--programs",
    type=click.IntRange(20, 1_000_000),
    default=3000,
    show_default=True,
    help="Programs of an application; co-located, as many of each.",
)
@click.option(
    "--history",
    type=click.IntRange(0, 1_000_000),
    default=300,
    show_default=True,
    help="Programs served before, at low load, and not measured.",
)
@click.option("--instances", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--profile", default="llama-3-8b/a40-tp1", show_default=True)
@INSTANCE
@click.option(
    "--sequences",
    type=click.IntRange(1, 4096),
    default=512,
    show_default=True,
    help="Maximum sequences an instance decodes at once; with the default, memory is the limit.",
)
@SEEDS
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    applications: tuple[str, ...],
    programs: int,
    history: int,
    instances: int,
    profile: str,
    instance: tuple[str, ...],
    sequences: int,
    seeds: tuple[int, ...],
    as_json: bool,
) -> None:
    """Serve agentic programs in virtual time, ordered and placed by Kairos and its baselines.

    Instances are simulated; the lengths of programs are estimates. For the paper's larger model:
    --profile llama-2-13b/a40-tp1 --application co-located.
    """
    fleet = fleet_of(instance, profile, instances)
    specs = instance or (f"{profile}:{instances}",)
    tasks = [
        (Bench(specs, sequences, programs, history, seed), application, load)
        for seed, application, load in product(seeds, applications or ALL, LOADS)
    ]
    runs = in_processes(_measure, tasks, "loads", lambda task: f"{task[1]}, load {task[2]:g}")
    measured = [one for _, found in runs for one in found]
    bands = bands_of(fleet.profile_names)
    if as_json:
        settings = {
            "profile": fleet.profile_names,
            "instances": len(fleet),
            "sequences": sequences,
            "seeds": seeds,
            "programs": programs,
            "history": history,
        }
        found_json = {
            "simulated": [asdict(one) for one in measured],
            "lower_by_per_cent": [asdict(one) for one in reductions(measured, bands)],
            "accuracy_per_cent": {
                system: {load: asdict(one) for load, one in by_load.items()}
                for system, by_load in accuracies(measured).items()
            },
            "paper_accuracy_per_cent": ACCURACY,
        }
        click.echo(json.dumps(settings | found_json, indent=2))
        return
    show(measured, bands, Console())
    click.echo(
        f"{programs} programs of an application, {history} before them, on {fleet}; all simulated, "
        "lengths are estimates"
    )
