"""CPU time of this process and its descendants, read from /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its living descendants."""
    used_s: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            process = int(folder.name)
            children[int(fields[1])].append(process)
            used_s[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found, total_s = [os.getpid()], 0.0
    while found:
        process = found.pop()
        total_s += used_s.get(process, 0.0)
        found += children[process]
    return total_s
