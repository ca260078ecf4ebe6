"""`metropolis bench agentix`: Agentix beside vLLM and MLFQ, simulated, beside the paper's figures.

Agentix §6: program-level token latency over the arrival rate of programs, throughput at equal
latency, load balancers, replicas, and the makespan of a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf

import click

from metropolis.bench._in_processes import in_processes
from metropolis.bench.agentix.measure import Bench, Measured
from metropolis.bench.agentix.systems import AGENTIX, SYSTEMS, System
from metropolis.bench.agentix.tables import (
    PAPER_BALANCER_TIMES,
    PAPER_SHORTER_BY,
    PAPER_TIMES,
    show,
)
from metropolis.command_options import SEEDS, loads_of, some_of
from metropolis.sim.options import Preemption
from metropolis.sim.profiles import load_entry
from metropolis.tables import plain_console
from metropolis.trace.generate.agentix import MIXED, WORKLOADS

LOADS = (0.7, 1.0, 1.2, 1.5, 2.0, 3.0)
"""Multiples of the rate that just saturates one instance, see Bench.busy_per_s."""
FEW_LOADS = (0.4, 0.8, 1.1, 1.5)
"""Loads of runs with many instances."""
BALANCERS = ("round_robin", "least_used", "prefix", "agentix")
BALANCED = ("ShareGPT", "LATS")
NAMES = (*WORKLOADS, MIXED)
INSTANCES = 4
REPLICAS = (1, 2, 4)
PARTS = ("curves", "batches", "balancers", "replicas")


@dataclass(frozen=True)
class Run:
    """One measurement; rates are per instance."""

    part: str
    workload: str
    system: System
    load: float
    instances: int = 1
    shares: int = 1
    """Multiple of the programs of one instance."""


def runs(loads: Sequence[float] = LOADS) -> list[Run]:
    """Return all runs, curves over `loads`; a load of inf is a batch that arrives at once."""
    balanced = [replace(AGENTIX, dispatcher=balancer) for balancer in BALANCERS]
    return [
        *(Run("curves", name, one, load) for name in NAMES for one in SYSTEMS for load in loads),
        *(Run("batches", name, one, inf) for name in NAMES for one in SYSTEMS),
        *(
            Run("balancers", name, one, load, INSTANCES, INSTANCES)
            for name in BALANCED
            for one in balanced
            for load in FEW_LOADS
        ),
        *(
            Run("replicas", "ShareGPT", AGENTIX, load, replicas, REPLICAS[-1])
            for replicas in REPLICAS
            for load in FEW_LOADS
        ),
    ]


def _measure(task: tuple[Bench, Run]) -> Iterator[Measured]:
    bench, run = task
    per_s = run.load * run.instances * _busy_per_s(bench, run.workload, run.system)
    yield bench.run(run.workload, run.system, per_s, run.instances, run.shares)


def _description(task: tuple[Bench, Run]) -> str:
    _, run = task
    return f"{run.part}: {run.workload}, {run.system.name}"


@cache
def _busy_per_s(bench: Bench, workload: str, system: System) -> float:
    return bench.busy_per_s(workload, system)


@click.command("agentix")
@click.option("--programs", type=click.IntRange(10, 1_000_000), default=1000, show_default=True)
@click.option("--profile", default="llama-3-8b/a100", show_default=True)
@click.option(
    "--sequences",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    help="Maximum sequences an instance decodes at once: with fewer, fewer programs saturate it.",
)
@click.option(
    "--preemption",
    type=click.Choice(["swap", "swap_all"]),
    default="swap_all",
    show_default=True,
    help="Whether a preempted request's KV blocks are copied as the prefix cache drops them, or "
    "all at once and back, as in vLLM 0.6.",
)
@some_of("--workload", NAMES, "A workload")
@loads_of(
    LOADS,
    0.01,
    100,
    "multiples",
    "Arrival rates of the curves, as multiples of the rate that keeps a full batch busy.",
)
@SEEDS
@some_of("--only", PARTS, "A part")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    programs: int,
    profile: str,
    sequences: int,
    preemption: Preemption,
    workload: tuple[str, ...],
    loads: tuple[float, ...],
    seeds: tuple[int, ...],
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve agentic programs in virtual time, with Agentix and its baselines.

    Instances are simulated; programs are generated from the paper's statistics. --programs is the
    number of chats per instance; other workloads get as many programs as take about as long.
    """
    chosen = [
        run
        for run in runs(loads)
        if run.part in (only or PARTS) and run.workload in (workload or NAMES)
    ]
    if not chosen:
        raise click.UsageError(f"{' and '.join(only)} have no runs of {' and '.join(workload)}")
    load_entry(profile)  # refused before any process begins
    benches = [Bench(profile, sequences, programs, seed, preemption) for seed in seeds]
    tasks = [(bench, run) for bench in benches for run in chosen]
    found: dict[str, list[Measured]] = {run.part: [] for run in chosen}
    for (_, run), measured in in_processes(_measure, tasks, 1, _description):
        found[run.part] += measured
    if as_json:
        settings = {
            "profile": profile,
            "sequences": sequences,
            "preemption": preemption,
            "seeds": seeds,
            "programs": programs,
        }
        simulated = {part: [asdict(one) for one in rows] for part, rows in found.items()}
        paper = {
            "throughput_times": PAPER_TIMES,
            "balancer_times": PAPER_BALANCER_TIMES,
            "batch_shorter_by": PAPER_SHORTER_BY,
        }
        click.echo(json.dumps(settings | {"simulated": simulated, "paper": paper}, indent=2))
        return
    show(found, plain_console())
    click.echo(
        f"{programs} chats per instance, {profile}, {sequences} sequences at once, "
        f"preemption by {preemption}; all simulated, lengths are estimates"
    )
