"""`metropolis store`: list, inspect and remove the runs in a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click
import msgspec
from rich import box
from rich.table import Table

from metropolis.addresses import shown
from metropolis.cli.terminal import printable
from metropolis.names import counted
from metropolis.store.base import Inspection, Queued, Server, StoreError, StoreUnavailableError
from metropolis.store.factory import (
    ADDRESS_FORMS,
    ADDRESS_VARIABLES,
    address_from_environment,
    open_server,
)
from metropolis.tables import plain_console, print_whole
from metropolis.types import MetropolisError

LISTED_MAX = 12
"""Maximum items shown of a list; the rest is counted."""
STORE = click.option(
    "--store", "address", help=f"{ADDRESS_FORMS}. [default: METROPOLIS_STORE or REDIS_URL]"
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("store")
def command() -> None:
    """List, inspect and remove the runs in a store."""


@command.command("ls")
@STORE
@JSON
def ls_command(address: str | None, as_json: bool) -> None:
    """List the runs: their progress, memory, and the holders of their leases."""
    with _opened(address) as server:
        about = {run: _inspected(server, run) for run in server.runs()}
    if as_json:
        click.echo(
            msgspec.json.encode(
                {run: {"error": of} if isinstance(of, str) else of for run, of in about.items()}
            )
        )
        return
    table = Table("run", "world", "agents", "floor", "of", "memory MB", "holder", box=box.SIMPLE)
    for run, of in about.items():
        if isinstance(of, str):
            continue
        table.add_row(
            printable(run),
            printable(of.info.world),
            f"{len(of.info.agents):,}",
            f"{of.floor:,}",
            f"{of.info.last_step:,}",
            f"{of.memory_bytes / 1e6:.1f}",
            printable(of.holder or "–"),
        )
    print_whole(table, plain_console())
    for of in about.values():
        if isinstance(of, str):
            click.echo(printable(of))


def _inspected(server: Server, run: str) -> Inspection | str:
    """The state of a run, or the error of a damaged one, which should not hide the others."""
    try:
        return server.store(run).inspect()
    except StoreUnavailableError:
        raise
    except StoreError as error:
        return f"{error}"


@command.command("inspect")
@click.argument("run")
@STORE
@JSON
def inspect_command(run: str, address: str | None, as_json: bool) -> None:
    """Show the state of RUN: floor, blocked agents, queues, memory, counts."""
    with _opened(address, run) as server:
        about = server.store(run).inspect()
    if as_json:
        click.echo(msgspec.json.encode(about))
        return
    for name, value in _described(about):
        click.echo(f"{name:<11} {printable(value)}")


@command.command("rm")
@click.argument("run")
@STORE
def rm_command(run: str, address: str | None) -> None:
    """Remove RUN. Refused while a process holds it."""
    with _opened(address, run) as server:
        server.remove(run)
    click.echo(f"removed {run}")


@contextmanager
def _opened(address: str | None, run: str | None = None) -> Iterator[Server]:
    """Open the store. Raises MetropolisError if there is none, or `run` is not in it."""
    chosen = address or address_from_environment()
    if chosen is None:
        raise MetropolisError(
            f"no store is named; give --store {ADDRESS_FORMS}, or set "
            f"{' or '.join(ADDRESS_VARIABLES)}"
        )
    with open_server(chosen, attach=True) as server:
        if run is not None and run not in (runs := server.runs()):
            place = shown(chosen) if "://" in chosen else chosen
            there = f"there are {_listed(runs)}" if runs else "it holds none"
            raise MetropolisError(f"{place}: there is no run {run!r}; {there}")
        yield server


def _described(about: Inspection) -> Iterable[tuple[str, str]]:
    info = about.info
    yield (
        "world",
        f"{info.world}, seed {info.seed}, {counted(len(info.agents), 'agent')}, {info.metric}",
    )
    yield ("floor", f"{about.floor:,} of {info.last_step:,}; collected below {about.released:,}")
    agents_at = sorted(Counter(about.steps).items())
    yield "steps", _listed(f"{count:,} at {step:,}" for step, count in agents_at)
    yield "blocked", _listed(_edges(about))
    yield "ready", _listed(_clusters(info.agents, about.ready))
    yield "claimed", _listed(_clusters(info.agents, about.claimed))
    yield "commits", f"{about.acknowledgements:,} not collected"
    yield "memory", f"{about.memory_bytes:,} bytes"
    lease = f"{about.holder}, lease valid for {about.lease_left_s:.1f} s"
    yield "holder", "none" if about.holder is None else lease
    yield "counts", _listed(f"{name} {count:,}" for name, count in sorted(about.counts.items()))
    for warning in about.warnings:
        yield "warning", warning


def _edges(about: Inspection) -> Iterable[str]:
    """Describe blocked agents and their blockers; at an equal step: a blocked cluster member."""
    for agent, other in about.blocked_by.items():
        here, there = about.steps[agent], about.steps[other]
        blocker = f"by {about.info.agents[other]} at {there:,}"
        companion = f"with {about.info.agents[other]}"
        waiting = f"{about.info.agents[agent]} at {here:,}"
        yield f"{waiting} {companion if here == there else blocker}"


def _clusters(names: Sequence[str], queued: Iterable[Queued]) -> Iterable[str]:
    for cluster in queued:
        members = " + ".join(names[agent] for agent in cluster.agents[:LISTED_MAX])
        more = len(cluster.agents) - LISTED_MAX
        shown_members = members if more <= 0 else f"{members} + {more:,} more"
        by = "" if cluster.worker is None else f" by {cluster.worker} for {cluster.left_s:.1f} s"
        yield f"step {cluster.step:,}: {shown_members}{by}"


def _listed(items: Iterable[str]) -> str:
    every = list(items)
    more = len(every) - LISTED_MAX
    return "; ".join([*every[:LISTED_MAX], *([f"and {more:,} more"] if more > 0 else [])]) or "–"
