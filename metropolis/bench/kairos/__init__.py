"""`metropolis bench kairos`: Kairos beside Parrot and Ayo, simulated, beside the paper's figures.

Kairos §7: program-level token latency of three applications, separate and co-located, over loads,
with ablations and the accuracy of the order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

import click

from metropolis.bench._in_processes import in_processes
from metropolis.bench.kairos.measure import SYSTEMS, Bench, Measured
from metropolis.bench.kairos.paper import ACCURACY, bands_of
from metropolis.bench.kairos.tables import accuracies, reductions, show
from metropolis.command_options import (
    INSTANCE,
    SEEDS,
    Number,
    OutputFolder,
    fleet_of,
    loads_of,
    some_of,
)
from metropolis.durable import reported
from metropolis.names import did_you_mean
from metropolis.tables import plain_console
from metropolis.trace.generate.agentic import (
    APPLICATIONS,
    CO_LOCATED,
    FUNCTIONS,
    LENGTHS,
    TOKENS_MAX,
)

LOADS = (1.0, 30.0, 50.0, 70.0, 90.0)
"""Per cent of queueing under Parrot; the paper's go from 0 to 90 % (§7.1)."""
ALL = (*APPLICATIONS, CO_LOCATED)


def _measure(task: tuple[Bench, str, tuple[float, ...]]) -> Iterator[Measured]:
    bench, application, loads = task
    return bench.measure(application, loads)


def _medians(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    medians = {}
    for part in ",".join(texts).split(",") if texts else ():
        function, _, tokens = (each.strip() for each in part.rpartition("="))
        if function not in LENGTHS:
            meant = did_you_mean(function, LENGTHS)
            raise click.BadParameter(
                f"{part!r} names no function{meant}; write FUNCTION=TOKENS with one of "
                f"{', '.join(LENGTHS)}"
            )
        is_number = tokens.isascii() and tokens.isdigit() and len(tokens) < 9
        if not is_number or not 1 <= int(tokens) <= TOKENS_MAX:
            raise click.BadParameter(
                f"{part!r} should end with a number of tokens from 1 to {TOKENS_MAX}"
            )
        medians[function] = int(tokens)
    return tuple(medians.items())


def _check_functions(functions: Iterable[str], applications: Collection[str]) -> None:
    """Refuse lengths of functions that none of the `applications` has."""
    if CO_LOCATED in applications:
        return
    known = [name for application in applications for name in FUNCTIONS[application]]
    for function in functions:
        if function not in known:
            raise click.BadParameter(
                f"{function!r} is not a function of {' or '.join(applications)}; there are "
                f"{', '.join(known)}",
                param_hint="'--answer-tokens'",
            )


@click.command("kairos")
@some_of("--application", ALL, "An application")
@loads_of(
    LOADS,
    0,
    95,
    "per cents",
    "Average share of a program's time spent in queues under Parrot, in per cent; the arrival "
    "rate that gives it is searched for.",
)
@click.option(
    "--minutes",
    type=Number(0.01, 1440),
    default=20,
    show_default=True,
    help="Simulated time for which programs arrive.",
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
    help="Maximum sequences an instance decodes at once.",
)
@click.option(
    "--answer-tokens",
    metavar="FUNCTION=TOKENS[,...]",
    multiple=True,
    callback=_medians,
    help="Median length of a function's answers, in place of the estimate; an answer ends at "
    f"{TOKENS_MAX} tokens. May be repeated.",
)
@SEEDS
@click.option(
    "--keep",
    type=OutputFolder(),
    help="A folder that keeps the result of each run. Runs whose results it has are not repeated, "
    "so a stopped benchmark can continue.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    application: tuple[str, ...],
    loads: tuple[float, ...],
    minutes: float,
    history: int,
    instances: int,
    profile: str,
    instance: tuple[str, ...],
    sequences: int,
    answer_tokens: tuple[tuple[str, int], ...],
    seeds: tuple[int, ...],
    keep: Path | None,
    as_json: bool,
) -> None:
    """Serve agentic programs in virtual time, ordered and placed by Kairos and its baselines.

    Instances are simulated; the lengths of programs are estimates. For the paper's larger model:
    --profile llama-2-13b/a40-tp1 --application co-located.
    """
    applications = application or ALL
    _check_functions(dict(answer_tokens), applications)
    fleet = fleet_of(instance, profile, instances)
    specs = instance or (f"{profile}:{instances}",)
    if keep is not None:
        with reported(keep):
            keep.mkdir(parents=True, exist_ok=True)
    tasks = [
        (Bench(specs, sequences, minutes, history, seed, answer_tokens, keep), name, loads)
        for seed, name in product(seeds, applications)
    ]
    runs = in_processes(
        _measure, tasks, len(loads) * len(SYSTEMS), lambda task: f"{task[1]}, seed {task[0].seed}"
    )
    measured = [one for _, found in runs for one in found]
    bands = bands_of(fleet.profile_names)
    if as_json:
        settings = {
            "profile": fleet.profile_names,
            "instances": len(fleet),
            "sequences": sequences,
            "seeds": seeds,
            "minutes": minutes,
            "history": history,
            "answer_tokens": dict(answer_tokens),
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
    show(measured, bands, plain_console())
    medians = ", ".join(f"{function} {tokens}" for function, tokens in answer_tokens)
    click.echo(
        f"{minutes:g} min of arrivals, {history} programs before them, on {fleet}; all simulated, "
        "lengths are estimates" + (f"; median tokens of answers: {medians}" if medians else "")
    )
