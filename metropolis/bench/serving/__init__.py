"""`metropolis bench serving`: every policy with every dispatcher, for simulations and programs.

Measures makespans of replays of SmallVille and LargeVille, and latencies of agentic mixes; all
simulated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

import click
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench import INSTANCE, Number, fleet_of
from metropolis.bench.serving.measure import MIXES, Bench, Mixed, Place, Replayed
from metropolis.policy.named import DISPATCHERS, names_of
from metropolis.progress import progress_bar
from metropolis.runtime.replays.replay import plug_ins
from metropolis.trace.generate.largeville import generate

OF_REPLAYS = ("fcfs", "step", "kairos", "step+kairos", "mlfq", "plas", "atlas", "step+atlas")
OF_MIXES = ("fcfs", "kairos", "mlfq", "plas", "atlas")
"""Mixes have neither a plan of stages, for `topology`, nor steps."""
HOURS = (12.0, 13.0)
"""The busy hour."""
SMALLVILLE = Place("SmallVille", 25, 2)


@click.command("serving")
@click.option("--policy", "policies", multiple=True, help="[default: all that apply]")
@click.option("--dispatcher", "dispatchers", multiple=True, help="[default: all]")
@click.option(
    "--agents",
    type=click.IntRange(1, 100_000),
    default=250,
    show_default=True,
    help="Agents of LargeVille on the instances; twice as many run on half of them.",
)
@click.option("--programs", type=click.IntRange(20, 1_000_000), default=400, show_default=True)
@click.option("--load", type=Number(0.01, 100), default=1.1, show_default=True)
@click.option("--instances", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--profile", default="llama-3-8b/l4", show_default=True)
@INSTANCE
@click.option(
    "--prefix-reuse/--no-prefix-reuse",
    default=True,
    show_default=True,
    help="Reuse the KV cache of shared prefixes.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    policies: tuple[str, ...],
    dispatchers: tuple[str, ...],
    agents: int,
    programs: int,
    load: float,
    instances: int,
    profile: str,
    instance: tuple[str, ...],
    prefix_reuse: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Replay simulations and serve programs with every policy and dispatcher, in virtual time.

    --load is the rate of programs as a multiple of the rate that fills the fleet.
    """
    placing = dispatchers or tuple(names_of(DISPATCHERS))
    of_replays = list(product(policies or OF_REPLAYS, placing))
    of_mixes = list(product(policies or OF_MIXES, placing))
    fleet = fleet_of(instance, profile, instances)
    measuring = Bench(fleet, prefix_reuse, seed)
    for policy, dispatcher in of_replays:
        plug_ins(policy, dispatcher, fleet.dispatcher_view())  # fail fast on wrong names
    places = [
        SMALLVILLE,
        Place("LargeVille", agents, len(fleet)),
        Place("LargeVille", 2 * agents, max(1, len(fleet) // 2)),
    ]
    replays: list[Replayed] = []
    mixes: list[Mixed] = []
    total = len(places) * len(of_replays) + len(MIXES) * len(of_mixes)
    with progress_bar(total, "runs") as (advance, describe):
        for place in places:
            trace = generate(place.agents, HOURS, seed)
            for pair in of_replays:
                describe(f"{place.agents} agents, {', '.join(pair)}")
                replays.append(measuring.replayed(trace, place, *pair))
                advance(1)
        for mix in MIXES:
            arriving = measuring.arriving(mix, programs, load)
            for pair in of_mixes:
                describe(f"{mix}, {', '.join(pair)}")
                mixes.append(measuring.mixed(mix, load, arriving, *pair))
                advance(1)
    if as_json:
        found = {"simulated": True, "profile": fleet.profile_names, "seed": seed, "hours": HOURS}
        rows = {
            "replays": [asdict(one) for one in replays],
            "mixes": [asdict(one) for one in mixes],
        }
        click.echo(json.dumps(found | rows, indent=2))
        return
    _print(replays, mixes, ", prefixes reused" if prefix_reuse else "")


def _print(replays: Sequence[Replayed], mixes: Sequence[Mixed], reuse: str) -> None:
    console = Console()
    for place in dict.fromkeys(one.place for one in replays):
        here = [one for one in replays if one.place == place]
        title = (
            f"{place.name}: {place.agents} agents, {here[0].calls:,} calls, "
            f"{here[0].fleet}{reuse}; makespan, sim_s"
        )
        cells = {(one.policy, one.dispatcher): f"{one.makespan_sim_s:,.0f}" for one in here}
        console.print(_matrix(title, cells))
    for mix in dict.fromkeys(one.mix for one in mixes):
        found = [one for one in mixes if one.mix == mix]
        title = (
            f"{mix}: {found[0].programs:,} programs at load {found[0].load:g}, "
            f"{found[0].fleet}{reuse}; ms per token, average / P99"
        )
        latencies = {
            (one.policy, one.dispatcher): f"{one.average_ms:,.0f} / {one.p99_ms:,.0f}"
            for one in found
        }
        console.print(_matrix(title, latencies))
    console.print("all simulated; lengths of programs are estimates")


def _matrix(title: str, cells: dict[tuple[str, str], str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.add_column("", no_wrap=True)
    dispatchers = list(dict.fromkeys(dispatcher for _, dispatcher in cells))
    for dispatcher in dispatchers:
        table.add_column(dispatcher, justify="right")
    for policy in dict.fromkeys(policy for policy, _ in cells):
        table.add_row(policy, *(cells[policy, dispatcher] for dispatcher in dispatchers))
    return table
