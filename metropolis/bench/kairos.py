"""`metropolis bench kairos`: Kairos beside Parrot and Ayo, simulated, beside the paper's figures.

Kairos §7: program-level token latency of three applications, separate and co-located, over loads,
with ablations and the accuracy of the order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench import INSTANCE, fleet_of
from metropolis.policy.base import Policy
from metropolis.policy.kairos.accuracy import ordering_accuracy
from metropolis.policy.named import DISPATCHERS, POLICIES, named
from metropolis.progress import progress_bar
from metropolis.sim.fleet import SimulatedFleet, busy_rate_per_s
from metropolis.sim.options import PoolOptions
from metropolis.sim.workload_simulation import WorkloadResult, WorkloadSimulation
from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED, workload

SYSTEMS = {
    "Parrot": ("fcfs", "round_robin"),
    "Ayo": ("topology", "round_robin"),
    "Kairos": ("kairos", "kairos"),
    "no priority": ("fcfs", "kairos"),
    "no packing": ("kairos", "round_robin"),
}
"""Policy and dispatcher (§7.1); the last two are ablations of Kairos (§7.6)."""
LOADS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 2.0, 4.0)
"""Shares of the rate that just saturates the instances, see `busy_rate_per_s`. At the paper's
highest load, requests queue for nine tenths of their time."""
HISTORY_LOAD = 0.5
"""Load of the programs served first, as a history: nothing queues."""
BEFORE = "before: "
"""Name prefix of the programs of the history."""
TAILS = (90, 95, 99)
# §7.2, §7.3: reduction of latency by Kairos, in per cent
PAPER = {
    "each": {
        "Parrot": {"average": (17.8, 28.4), "P90": (19.1, 28.6)},
        "Ayo": {"average": (5.8, 10.8), "P90": (13.4, 20.2)},
    },
    CO_LOCATED: {
        "Parrot": {
            "average": (45.1, 72.8), "P90": (45.4, 72.9), "P95": (56.8, 78.3), "P99": (69.6, 81.9)
        },
        "Ayo": {
            "average": (6.1, 37.9), "P90": (5.6, 35.7), "P95": (8.4, 40.6), "P99": (6.6, 57.2)
        },
    },
}  # fmt: skip
PAPER_ACCURACY = {"Kairos": 0.835, "Ayo": 0.759, "Parrot": 0.5}


@dataclass(frozen=True)
class Measured:
    """One system under one load; latencies in ms per output token."""

    application: str
    load: float
    programs_per_s: float
    system: str
    average_ms: float
    tails_ms: dict[int, float]
    queueing_share: float
    """Share of queueing in the time from arrival to answer, averaged over the run's calls."""
    preemptions: int
    """Includes those of the history."""
    accuracy: float

    def latency_ms(self, which: str) -> float:
        """`average`, or a tail like `P90`."""
        return self.average_ms if which == "average" else self.tails_ms[int(which[1:])]


def measure(
    application: str,
    load: float,
    busy_per_s: float,
    programs: int,
    history: int,
    fleet: SimulatedFleet,
    seed: int,
) -> list[Measured]:
    """Measure every system with the same arrivals, `load` times `busy_per_s` per second.

    `history` unmeasured programs precede them: the paper's Kairos knows its applications.
    """
    per_s = load * busy_per_s
    before = [
        replace(program, name=f"{BEFORE}{program.name}")
        for program in workload(application, history, HISTORY_LOAD * busy_per_s, seed + 1)
    ]
    start_s = before[-1].arrival_s if before else 0.0
    arriving = [
        replace(program, arrival_s=start_s + program.arrival_s)
        for program in workload(application, programs, per_s, seed)
    ]
    measured, view = [], fleet.dispatcher_view()
    for system, (policy_name, dispatcher_name) in SYSTEMS.items():
        policy: Policy = named(POLICIES, policy_name)()
        dispatcher = named(DISPATCHERS, dispatcher_name)(view)
        serving = WorkloadSimulation(
            before + arriving, fleet.profiles, policy, dispatcher, PoolOptions()
        )
        served = serving.run()
        measured.append(_summarize(application, load, per_s, system, served, policy))
    return measured


def _summarize(
    application: str, load: float, per_s: float, system: str, served: WorkloadResult, policy: Policy
) -> Measured:
    programs = [one for one in served.programs if not one.program.name.startswith(BEFORE)]
    served_requests = [e for e in served.requests if not e.request.program.startswith(BEFORE)]
    latencies_ms = np.array([1000 * one.latency_s_per_token for one in programs])
    queueing_s = sum(e.started_s - e.request.arrived_s for e in served_requests)
    whole_s = sum(e.completed_s - e.request.arrived_s for e in served_requests)
    return Measured(
        application,
        load,
        per_s,
        system,
        float(latencies_ms.mean()),
        {tail: float(np.percentile(latencies_ms, tail)) for tail in TAILS},
        queueing_s / whole_s,
        served.preemptions,
        ordering_accuracy(served_requests, policy),
    )


def reduction_by_kairos(
    measured: Sequence[Measured], than: str, which: str = "average"
) -> dict[tuple[str, float], float]:
    """Return (application, load) -> reduction of latency by Kairos, in per cent."""
    found = {(one.application, one.load, one.system): one.latency_ms(which) for one in measured}
    return {
        (application, load): 100 * (1 - found[application, load, "Kairos"] / theirs)
        for (application, load, system), theirs in found.items()
        if system == than
    }


@click.command("kairos")
@click.option("--programs", type=click.IntRange(20, 1_000_000), default=2000, show_default=True)
@click.option(
    "--history",
    type=click.IntRange(0, 1_000_000),
    default=300,
    show_default=True,
    help="Programs served before, at low load, and not measured.",
)
@click.option("--instances", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--profile", default="llama-3-8b/l4", show_default=True)
@INSTANCE
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    programs: int,
    history: int,
    instances: int,
    profile: str,
    instance: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Serve agentic programs in virtual time, ordered and placed by Kairos and its baselines.

    Instances are simulated; the lengths of programs are estimates.
    """
    fleet = fleet_of(instance, profile, instances)
    applications = [*APPLICATIONS, CO_LOCATED]
    measured: list[Measured] = []
    with progress_bar(len(applications) * len(LOADS), "loads") as (advance, describe):
        for application in applications:
            busy_per_s = busy_rate_per_s(
                workload(application, 500, 1.0, seed), fleet.dispatcher_view()
            )
            for load in LOADS:
                describe(f"{application}, load {load:g}")
                measured += measure(application, load, busy_per_s, programs, history, fleet, seed)
                advance(1)
    if as_json:
        found = {"profile": fleet.profile_names, "instances": len(fleet), "seed": seed}
        found |= {"programs": programs, "history": history}
        rows = [asdict(one) for one in measured]
        paper = {"lower_by_per_cent": PAPER, "accuracy": PAPER_ACCURACY}
        click.echo(json.dumps(found | {"simulated": rows, "paper": paper}, indent=2))
        return
    _print(measured, Console())
    click.echo(
        f"{programs} programs, {history} before them, on {fleet}; all simulated, "
        "lengths are estimates"
    )


def _print(measured: Sequence[Measured], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="Latency, ms per output token of a program")
    for name in ("", "load", "queueing", "system", "average", *(f"P{tail}" for tail in TAILS)):
        table.add_column(name, justify="left" if name in ("", "system") else "right", no_wrap=True)
    table.add_column("preempted", justify="right")
    table.add_column("in order", justify="right")
    for one in measured:
        table.add_row(
            one.application,
            f"{one.load:g}",
            f"{one.queueing_share:.0%}",
            one.system,
            f"{one.average_ms:.0f}",
            *(f"{one.tails_ms[tail]:.0f}" for tail in TAILS),
            f"{one.preemptions}",
            f"{one.accuracy:.1%}",
        )
    console.print(table)
    for baseline, application in product(
        ("Parrot", "Ayo"), dict.fromkeys(one.application for one in measured)
    ):
        bands = PAPER["each" if application in APPLICATIONS else application][baseline]
        for which, (low, high) in bands.items():
            lower = reduction_by_kairos(measured, baseline, which)
            ours = [percent for (name, _), percent in lower.items() if name == application]
            console.print(
                f"{application}: Kairos' {which} is {min(ours):.1f} to {max(ours):.1f} % lower "
                f"than {baseline}'s (paper: {low} to {high} %)"
            )
    for system, paper in PAPER_ACCURACY.items():
        right = [one.accuracy for one in measured if one.system == system]
        console.print(
            f"{system}: {np.mean(right):.1%} of pairs in the right order (paper: {paper:.1%})"
        )
