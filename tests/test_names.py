"""Names and values in messages."""

from __future__ import annotations

import pytest

from metropolis.names import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("one\ntwo"), "one"), (AssertionError(), "AssertionError")],
)
def test_errors_without_a_message_are_named_by_their_class(error: Exception, line: str) -> None:
    assert first_line(error) == line
