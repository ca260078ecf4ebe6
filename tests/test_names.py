"""Names and numbers in texts."""

from __future__ import annotations

import pytest

from metropolis.names import count_in, first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("one\ntwo"), "one"), (AssertionError(), "AssertionError")],
)
def test_errors_without_a_message_are_named_by_their_class(error: Exception, line: str) -> None:
    assert first_line(error) == line


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1), ("007", 7), ("99", 99), ("100", None), ("0", None), ("", None), ("-1", None),
        ("1.0", None), ("²", None), ("٣", 3), ("9" * 5000, None),
    ],
)  # fmt: skip
def test_counts_are_whole_numbers_up_to_a_maximum(text: str, count: int | None) -> None:
    assert count_in(text, 99) == count
