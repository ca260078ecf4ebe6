"""`metropolis bench samullm`: plans of multi-LLM applications, beside SamuLLM's figures.

Every section is a module or object with the functions of `Section`. All are simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import click
from rich.console import Console

from metropolis.bench.samullm import ablation, absolute, optimum, settings, society
from metropolis.bench.samullm.summary import show_summary
from metropolis.progress import progress_bar

Rows = list[dict[str, Any]]


class Section(Protocol):
    """A part of the benchmark."""

    @property
    def KIND(self) -> str:  # noqa: N802 -- of modules, a constant
        """`simulated`."""

    def runs(self, quick: bool) -> int:
        """Number of steps that `measure` reports."""

    def measure(self, quick: bool, seed: int, advance: Callable[[int], None]) -> Rows:
        """The results as plain data; `quick`: few of them, to try the section."""

    def show(self, rows: Sequence[dict[str, Any]], console: Console) -> None:
        """Print the results as tables whose titles begin with the kind."""


SECTIONS: dict[str, Section] = {
    **settings.SECTIONS,
    "ablation": ablation,
    "absolute": absolute,
    "optimum": optimum,
    "society": society,
}


@click.command("samullm")
@click.option(
    "--only", multiple=True, type=click.Choice([*SECTIONS]),
    help="A section; may be repeated. [default: all]",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Few and short runs, to try a section.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(only: tuple[str, ...], quick: bool, seed: int, as_json: bool) -> None:
    """Compare plans for several models on 8 GPUs, as in SamuLLM's experiments (simulated).

    A plan is made for one draw of output lengths. Its runs have other draws and other speeds.
    Search times are measured. What the paper leaves open is assumed (docs/plan.md).
    """
    chosen = [name for name in SECTIONS if name in (only or SECTIONS)]
    found: dict[str, Rows] = {}
    with progress_bar(sum(SECTIONS[name].runs(quick) for name in chosen), "runs") as (
        advance,
        describe,
    ):
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
    show_summary([row for name in settings.SECTIONS for row in found.get(name, [])], console)
