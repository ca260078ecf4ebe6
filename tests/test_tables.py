"""Tables on narrow terminals."""

from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.tables import PROSE, plain_console, print_whole

NAMES = st.text("abcdefgh", min_size=1, max_size=12)
NUMBERS = st.integers(0, 10**12).map("{:,}".format)
ROWS = st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5)


def printed(table: Table, width: int) -> str:
    console = Console(file=StringIO(), width=width, markup=False)
    print_whole(table, console)
    assert console.width == width
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@given(ROWS, st.integers(1, 120), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_number_and_no_name_is_cut(
    rows: list[tuple[str, ...]], width: int, no_wrap: bool
) -> None:
    table = Table("system", box=box.SIMPLE_HEAD)
    for heading in ("mean of all", "P99", "preemptions"):
        table.add_column(heading, justify="right", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    words = printed(table, width).split()
    assert {cell for row in rows for cell in row} | {"system", "preemptions"} <= set(words)


def test_long_texts_are_wrapped_in_their_cells() -> None:
    text = "a sentence of several words that is longer than the terminal is wide" * 2
    assert len(text) > PROSE
    table = Table("name", "what it says", box=box.SIMPLE_HEAD)
    table.add_row("x" * 30, text)
    lines = printed(table, 60).splitlines()
    assert max(map(len, lines)) == 60
    assert "x" * 30 in "\n".join(lines)


def test_a_table_that_fits_is_as_rich_prints_it() -> None:
    table = Table("name", "number", box=box.SIMPLE_HEAD)
    table.add_row("a", "1,000")
    console = Console(file=StringIO(), width=60)
    console.print(table)
    assert printed(table, 60) == console.file.getvalue()  # type: ignore[attr-defined]


def test_texts_that_are_data_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("[red]a :smile: [/red]")
    assert capsys.readouterr().out == "[red]a :smile: [/red]\n"
