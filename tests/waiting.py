"""Waiting for a condition, and whether a process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 30.0


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until `condition` holds, for at most PATIENCE_S; return whether it does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def has_ended(pid: int) -> bool:
    """Return whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
