"""Whether a process holds the lock of a file; asking takes no lock, which could disturb a run."""

from __future__ import annotations

import time
from pathlib import Path

LOCKS = Path("/proc/locks")
RECENT_WALL_S = 10.0
"""Without a list of locks, a file that changed within this time counts as locked."""


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock for writing on the file."""
    try:
        found = path.stat()
        if not LOCKS.exists():
            return time.time() - found.st_mtime < RECENT_WALL_S
        locks = LOCKS.read_text()
    except OSError:
        return False
    inodes = {
        fields[5].rpartition(":")[2]
        for fields in map(str.split, locks.splitlines())
        if len(fields) > 5 and fields[1:4:2] == ["FLOCK", "WRITE"]
    }
    return f"{found.st_ino}" in inodes
