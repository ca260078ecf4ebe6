"""Texts of others on their way to a terminal, which some of them would take over."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` with escapes in the place of all that is not seen as what it is."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_controls(text: str) -> str:
    """`text` with escapes in the place of what moves a terminal's cursor or changes its state.

    Lines and what writing systems need stay.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
