"""Tables on a terminal, without numbers that are cut."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PROSE = 40
"""Texts wider than this may be wrapped in their cells."""
_UNLIMITED = 10_000


def numbers_table(first: str, *others: str) -> Table:
    """An empty table: a column of names headed `first`, and columns of numbers headed `others`."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def or_dash(value: float | None, form: str) -> str:
    """`value` in the format `form`; a dash for None."""
    return "–" if value is None else format(value, form)


def plain_console(*, highlight: bool = True) -> Console:
    """A console that prints texts as they are, since names are data: no markup, no emoji.

    `highlight`: whether numbers and the like are coloured.
    """
    return Console(markup=False, emoji=False, highlight=highlight)


def print_whole(table: Table, console: Console) -> None:
    """Print `table` with whole numbers and names: rich cuts those that do not fit.

    Where the terminal is too narrow, headings are wrapped first, then texts wider than PROSE; the
    terminal wraps the lines that are still too long.
    """
    width, whole = console.width, console.options.update(width=_UNLIMITED)
    if Measurement.get(console, whole, table).maximum > width:
        for column in table.columns:
            cells = [Measurement.get(console, whole, cell).maximum for cell in column.cells]
            widest = max(cells, default=0)
            if column.justify == "right" or widest <= PROSE:
                heading = Measurement.get(console, whole, column.header)
                column.width, column.no_wrap = max(widest, heading.minimum), False
    console.width = max(width, Measurement.get(console, whole, table).minimum)
    console.print(table)
    console.width = width
