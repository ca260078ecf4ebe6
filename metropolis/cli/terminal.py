"""What is printed: escaping of untrusted text, and the end of a pipe."""

from __future__ import annotations

import os
import re
import sys

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def discard_output() -> None:
    """Discard what is yet to be printed: the reader of standard output has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def printable(text: str) -> str:
    """Return `text` with every unprintable character escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_controls(text: str) -> str:
    """Return `text` with characters that move the cursor or change a terminal's state escaped.

    Line breaks and characters that writing systems need are kept.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
