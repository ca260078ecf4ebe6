"""Escaping of untrusted text before it is printed to a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return `text` with every unprintable character escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_controls(text: str) -> str:
    """Return `text` with characters that move the cursor or change a terminal's state escaped.

    Line breaks and characters that writing systems need are kept.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
