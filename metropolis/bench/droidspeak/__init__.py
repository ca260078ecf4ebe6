"""`metropolis bench droidspeak`: reuse of other models' caches, beside DroidSpeak's figures.

Every section is a module with the functions of `Section` or `PairSection`; its tables say what is
simulated and what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import click
from rich.console import Console

from metropolis.bench.droidspeak import (
    applications,
    division,
    inputs,
    links,
    load,
    pair,
    prefill,
    served,
    smallville,
)
from metropolis.progress import progress_bar
from metropolis.reuse.plan import Plan, load_plan

Advance = Callable[[int], None]
Rows = list[dict[str, Any]]


class _Shown(Protocol):
    KIND: str
    """`simulated` or `measured`."""

    def runs(self, quick: bool) -> int:
        """Number of steps that `measure` reports."""

    def show(self, rows: Sequence[dict[str, Any]], console: Console) -> None:
        """Print the results as tables whose titles begin with the kind."""


class Section(_Shown, Protocol):
    """A part of the benchmark."""

    def measure(self, quick: bool, seed: int, advance: Advance) -> Rows:
        """The results as plain data; `quick`: few of them, to try the section."""


class PairSection(_Shown, Protocol):
    """A part that needs the folder of a pair and its plan."""

    def measure(self, folder: Path, plan: Plan, quick: bool, advance: Advance) -> Rows:
        """As that of Section."""


SECTIONS: dict[str, Section] = {
    "prefill": prefill,
    "load": load,
    "links": links,
    "division": division,
    "applications": applications,
    "inputs": inputs,
    "smallville": smallville,
}
PAIR_SECTIONS: dict[str, PairSection] = {"pair": pair, "served": served}
PLAN = "plan.json"


@click.command("droidspeak")
@click.option(
    "--pair",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder that examples/droidspeak_pair has made, with its plan in plan.json, for the "
    f"measured sections: {', '.join(PAIR_SECTIONS)}.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice((*SECTIONS, *PAIR_SECTIONS)),
    help="A section; may be repeated. [default: all; without --pair the simulated ones]",
)
@click.option("--quick", is_flag=True, help="Few and short runs, to try a section.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    folder: Path | None, only: tuple[str, ...], quick: bool, seed: int, as_json: bool
) -> None:
    """Measure what it is worth that a model starts from another model's cache.

    Simulated sections take the paper's pairs as plans; lengths of programs are estimates. Measured
    sections need a pair: python examples/droidspeak_pair/make.py DIR, then metropolis reuse profile
    --sender DIR/base --receiver DIR/receiver --data DIR/profile.jsonl --out DIR/plan.json.
    """
    if folder is None and (needing := [name for name in only if name in PAIR_SECTIONS]):
        raise click.UsageError(f"--only {needing[0]} measures a pair; name its folder with --pair")
    shown: dict[str, _Shown] = {**SECTIONS}
    measures: dict[str, Callable[[Advance], Rows]] = {
        name: partial(section.measure, quick, seed) for name, section in SECTIONS.items()
    }
    if folder is not None:
        plan = load_plan(folder / PLAN)
        for name, section in PAIR_SECTIONS.items():
            shown[name] = section
            measures[name] = partial(section.measure, folder, plan, quick)
    chosen = [name for name in shown if name in (only or shown)]
    found: dict[str, Rows] = {}
    with progress_bar(sum(shown[name].runs(quick) for name in chosen), "runs") as (
        advance,
        describe,
    ):
        for name in chosen:
            describe(name)
            found[name] = measures[name](advance)
    if as_json:
        rows = {name: {"kind": shown[name].KIND, "rows": found[name]} for name in chosen}
        click.echo(json.dumps({"seed": seed, "quick": quick, "sections": rows}, indent=2))
        return
    console = Console(markup=False, highlight=False)
    for name in chosen:
        shown[name].show(found[name], console)
