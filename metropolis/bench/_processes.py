"""Processes and their descendants, read from /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return all descendants of `pid`."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(entry.name)):
            children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found[1:]


def command_of(pid: int) -> bytes:
    """Return the words of the process, each followed by a zero; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return (_stat(pid) or ["X"])[0] not in ("Z", "X")


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its living descendants."""
    own = os.getpid()
    stats = [fields for pid in (own, *descendants(own)) if (fields := _stat(pid))]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """The fields of `stat` from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
