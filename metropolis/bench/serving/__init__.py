"""`metropolis bench serving`: every policy with every dispatcher, for societies and programs.

Measures makespans of SmallVille and LargeVille, replayed and live, and latencies of agentic mixes;
all simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any, TypeVar

import click
from rich import box
from rich.table import Table

from metropolis.bench._spread import SPREAD, spread
from metropolis.bench.serving.measure import MIXES, Bench, Mixed, Place, Society
from metropolis.command_options import INSTANCE, SEEDS, Number, fleet_of, some_of
from metropolis.policy.named import DISPATCHERS, names_of
from metropolis.progress import progress_bar
from metropolis.runtime.replays.replay import plug_ins
from metropolis.tables import plain_console, print_whole

Row = TypeVar("Row", Society, Mixed)

OF_REPLAYS = ("fcfs", "step", "kairos", "step+kairos", "mlfq", "plas", "atlas", "step+atlas")
OF_LIVE = ("fcfs", "step", "kairos", "step+kairos")
LIVE_DISPATCHERS = ("least_used", "prefix", "kairos")
"""Live runs cost the most CPU: only what is a default somewhere, and its rivals."""
OF_MIXES = ("fcfs", "kairos", "mlfq", "plas", "atlas")
"""Mixes have no steps, and Agentix' has no plan of stages, which `topology` needs."""
PARTS = ("replays", "live", "mixes")
TITLE_WIDTH = 72
HOUR = (12.0, 13.0)
SMALLVILLE = Place("SmallVille", 25, 2, sequences=2, hours=HOUR)
LIVE = (
    Place("SmallVille", 25, 2, sequences=2, live_steps=600),
    Place("LargeVille", 50, 2, sequences=4, live_steps=480),
)
"""Without a limit of sequences no call of so few agents waits."""


@click.command("serving")
@click.option("--policy", "policies", multiple=True, help="[default: all that apply]")
@click.option("--dispatcher", "dispatchers", multiple=True, help="[default: all]")
@click.option(
    "--agents",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="Agents of the replayed LargeVille, on half of the instances: calls wait.",
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
@some_of("--only", PARTS, "A part")
@SEEDS
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
    only: tuple[str, ...],
    seeds: tuple[int, ...],
    as_json: bool,
) -> None:
    """Run societies and serve programs with every policy and dispatcher, in virtual time.

    Societies are replayed from generated traces, and run live with their offline author. --load is
    the rate of programs as a multiple of the rate that fills the fleet.
    """
    every = tuple(names_of(DISPATCHERS))
    applying = {
        "replays": product(policies or OF_REPLAYS, dispatchers or every),
        "live": product(policies or OF_LIVE, dispatchers or LIVE_DISPATCHERS),
        "mixes": product(policies or OF_MIXES, dispatchers or every),
    }
    pairs = {part: list(applying[part]) if part in (only or PARTS) else [] for part in PARTS}
    fleet = fleet_of(instance, profile, instances)
    for policy, dispatcher in {pair for part in ("replays", "live") for pair in pairs[part]}:
        plug_ins(policy, dispatcher, fleet.dispatcher_view())  # fail fast on wrong names
    places = [SMALLVILLE, Place("LargeVille", agents, max(1, len(fleet) // 2))]
    societies: dict[str, list[Society]] = {"replays": [], "live": []}
    mixes: list[Mixed] = []
    repeated = {"replays": len(places), "live": len(LIVE), "mixes": len(MIXES)}
    total = len(seeds) * sum(repeated[part] * len(pairs[part]) for part in PARTS)
    with progress_bar(total, "runs") as (advance, describe):

        def each(part: str, what: str, measure: Callable[[str, str], Society | Mixed]) -> None:
            for policy, dispatcher in pairs[part]:
                describe(f"{part}: {what}, {policy}, {dispatcher}")
                measured = measure(policy, dispatcher)
                if isinstance(measured, Mixed):
                    mixes.append(measured)
                else:
                    societies[part].append(measured)
                advance(1)

        for bench in (Bench(fleet, prefix_reuse, seed) for seed in seeds):
            for place in places if pairs["replays"] else ():
                trace = bench.trace(place)
                each("replays", f"{place.agents} agents", partial(bench.replayed, trace, place))
            for place in LIVE:
                each("live", f"{place.agents} agents", partial(bench.live, place))
            for mix in MIXES if pairs["mixes"] else ():
                arriving = bench.arriving(mix, programs, load)
                each("mixes", mix, partial(bench.mixed, mix, load, arriving))
    if as_json:
        about: dict[str, Any] = {"simulated": True, "profile": fleet.profile_names, "seeds": seeds}
        rows = {part: [asdict(one) for one in found] for part, found in societies.items()}
        rows["mixes"] = [asdict(one) for one in mixes]
        click.echo(json.dumps(about | rows, indent=2))
        return
    _print(societies, mixes, ", prefixes reused" if prefix_reuse else "", len(seeds))


def _print(
    societies: Mapping[str, Sequence[Society]], mixes: Sequence[Mixed], reuse: str, seeds: int
) -> None:
    console = plain_console()
    shown = f"; {SPREAD} of {seeds} seeds" if seeds > 1 else ""
    for part, found in societies.items():
        for place in dict.fromkeys(one.place for one in found):
            here = [one for one in found if one.place == place]
            print_whole(_matrix(_title(part, here) + reuse + shown, _makespans(here)), console)
    for mix in dict.fromkeys(one.mix for one in mixes):
        of_mix = [one for one in mixes if one.mix == mix]
        title = (
            f"{mix}: {of_mix[0].programs:,} programs at load {of_mix[0].load:g}, "
            f"{of_mix[0].fleet}{reuse}; ms per token, average / P99{shown}"
        )
        latencies = {
            pair: " / ".join(
                spread([getattr(one, name) for one in same], ",.0f")
                for name in ("average_ms", "p99_ms")
            )
            for pair, same in _by_pair(of_mix).items()
        }
        print_whole(_matrix(title, latencies), console)
    console.print("all simulated; lengths of programs are estimates")


def _title(part: str, found: Sequence[Society]) -> str:
    """What the cells have in common, and how long calls wait."""
    place, kind = found[0].place, "replayed" if part == "replays" else "live"
    limit = "" if place.sequences is None else f" of {place.sequences} sequences"
    waits = [one.queueing_mean_sim_s for one in found]
    return (
        f"{place.name}, {kind}: {place.agents} agents, "
        f"{spread([one.calls for one in _by_pair(found).popitem()[1]], ',.0f')} calls, "
        f"{found[0].fleet}{limit}; makespan, sim_s; mean wait of calls {min(waits):.2f} to "
        f"{max(waits):.2f}"
    )


def _makespans(found: Sequence[Society]) -> dict[tuple[str, str], str]:
    return {
        pair: spread([one.makespan_sim_s for one in same], ",.0f")
        for pair, same in _by_pair(found).items()
    }


def _by_pair(found: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The cells of all seeds, by policy and dispatcher."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for one in found:
        pairs.setdefault((one.policy, one.dispatcher), []).append(one)
    return pairs


def _matrix(title: str, cells: dict[tuple[str, str], str]) -> Table:
    width = min(len(title), TITLE_WIDTH)  # rich wraps a title at the width of its table
    table = Table(box=box.SIMPLE_HEAD, title=title, min_width=width)
    table.add_column("", no_wrap=True)
    dispatchers = list(dict.fromkeys(dispatcher for _, dispatcher in cells))
    for dispatcher in dispatchers:
        table.add_column(dispatcher, justify="right")
    for policy in dict.fromkeys(policy for policy, _ in cells):
        table.add_row(policy, *(cells[policy, dispatcher] for dispatcher in dispatchers))
    return table
