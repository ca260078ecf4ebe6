"""`metropolis bench droidspeak`: reuse of other models' caches, beside DroidSpeak's figures.

Every section is a module with the functions of `Section`; its tables say what is simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import click
from rich.console import Console

from metropolis.bench.droidspeak import (
    applications,
    division,
    inputs,
    links,
    load,
    prefill,
    smallville,
)
from metropolis.progress import progress_bar


class Section(Protocol):
    """A part of the benchmark."""

    KIND: str
    """`simulated` or `measured`."""

    def runs(self, quick: bool) -> int:
        """Number of steps that `measure` reports."""

    def measure(
        self, quick: bool, seed: int, advance: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """The results as plain data; `quick`: few of them, to try the section."""

    def show(self, rows: Sequence[dict[str, Any]], console: Console) -> None:
        """Print the results as tables whose titles begin with the kind."""


SECTIONS: dict[str, Section] = {
    "prefill": prefill,
    "load": load,
    "links": links,
    "division": division,
    "applications": applications,
    "inputs": inputs,
    "smallville": smallville,
}


@click.command("droidspeak")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(tuple(SECTIONS)),
    help="A section; may be repeated.  [default: all]",
)
@click.option("--quick", is_flag=True, help="Few and short runs, to try a section.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(only: tuple[str, ...], quick: bool, seed: int, as_json: bool) -> None:
    """Measure what it is worth that a model starts from another model's cache.

    Simulated sections take the paper's pairs as plans; lengths of programs are estimates.
    """
    chosen = [name for name in SECTIONS if name in (only or SECTIONS)]
    found: dict[str, list[dict[str, Any]]] = {}
    total = sum(SECTIONS[name].runs(quick) for name in chosen)
    with progress_bar(total, "runs") as (advance, describe):
        for name in chosen:
            describe(name)
            found[name] = SECTIONS[name].measure(quick, seed, advance)
    if as_json:
        rows = {name: {"kind": SECTIONS[name].KIND, "rows": found[name]} for name in chosen}
        click.echo(json.dumps({"seed": seed, "quick": quick, "sections": rows}, indent=2))
        return
    console = Console(markup=False, highlight=False)
    for name in chosen:
        SECTIONS[name].show(found[name], console)
