"""Benchmarks, and how they start other processes."""

from __future__ import annotations

import sys


def installed(code: str) -> list[str]:
    """The command that runs `code` on what is installed, not on what lies in this folder."""
    return [sys.executable, "-P", "-c", code]


METROPOLIS = installed("from metropolis.cli import main; main()")
"""The command line."""
