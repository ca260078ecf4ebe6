"""Tables of the sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.tables import print_whole

WIDTH = 110


def print_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str = "",
) -> None:
    """Print a table and a note; all but its first column are aligned to the right."""
    console.width = max(console.width, WIDTH)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    print_whole(table, console)
    console.print(f"{note}\n" if note else "")
