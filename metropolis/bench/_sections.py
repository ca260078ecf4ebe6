"""Benchmarks that consist of sections: their options, and the loop that runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import click
from rich.console import Console

from metropolis.command_options import Command, with_options
from metropolis.progress import progress_bar
from metropolis.tables import plain_console

Advance: TypeAlias = Callable[[int], None]
Rows: TypeAlias = list[dict[str, Any]]


class ShownSection(Protocol):
    """What every section has; a section is a module or an object."""

    @property
    def KIND(self) -> str:  # noqa: N802 -- of modules, a constant
        """`simulated` or `measured`."""

    def runs(self, quick: bool) -> int:
        """Number of steps that `measure` reports."""

    def show(self, rows: Sequence[dict[str, Any]], console: Console) -> None:
        """Print the results as tables whose titles begin with the kind."""


class Section(ShownSection, Protocol):
    """A section that needs nothing but a seed."""

    def measure(self, quick: bool, seed: int, advance: Advance) -> Rows:
        """The results as plain data; `quick`: few of them, to try the section."""


class SectionRun(NamedTuple):
    """A section, and its `measure` with all arguments but the last."""

    section: ShownSection
    measure: Callable[[Advance], Rows]


def section_options(names: Iterable[str], default: str = "all") -> Callable[[Command], Command]:
    """The options `only`, `quick`, `seed` and `as_json` of a command.

    `default` describes the default of `only`.
    """
    return with_options(
        click.option(
            "--only", multiple=True, type=click.Choice([*names]),
            help=f"A section; may be repeated. [default: {default}]",
        ),
        click.option("--quick", is_flag=True, help="Few and short runs, to try a section."),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
        click.option("--json", "as_json", is_flag=True, help="Print an object."),
    )  # fmt: skip


def seeded_runs(sections: Mapping[str, Section], quick: bool, seed: int) -> dict[str, SectionRun]:
    """The runs of sections that need nothing but a seed."""
    return {
        name: SectionRun(section, partial(section.measure, quick, seed))
        for name, section in sections.items()
    }


def run_sections(
    runs: Mapping[str, SectionRun], only: Sequence[str], quick: bool, seed: int, as_json: bool,
    show_more: Callable[[Mapping[str, Rows], Console], None] = lambda _found, _console: None,
) -> None:  # fmt: skip
    """Measure the sections of `only`, or all, and print their results.

    `show_more` prints more below the tables, from the rows of the sections that ran.
    """
    chosen = {name: run for name, run in runs.items() if name in (only or runs)}
    found: dict[str, Rows] = {}
    total = sum(run.section.runs(quick) for run in chosen.values())
    with progress_bar(total, "runs") as (advance, describe):
        for name, run in chosen.items():
            describe(name)
            found[name] = run.measure(advance)
    if as_json:
        rows = {
            name: {"kind": run.section.KIND, "rows": found[name]} for name, run in chosen.items()
        }
        click.echo(json.dumps({"seed": seed, "quick": quick, "sections": rows}, indent=2))
        return
    console = plain_console(highlight=False)
    for name, run in chosen.items():
        run.section.show(found[name], console)
    show_more(found, console)
