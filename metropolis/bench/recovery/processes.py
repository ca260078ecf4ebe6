"""Descendants of a process, read from /proc."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

ACTOR = b"ray::_Actor"
RAYLET = b"/raylet/raylet\0"


def descendants(pid: int) -> dict[int, bytes]:
    """Return the command lines of all descendants of `pid`, by process id."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children[_parent(entry)].append(int(entry.name))
    found: dict[int, bytes] = {}
    left = [pid]
    while left:
        for child in children[left.pop()]:
            left.append(child)
            found[child] = _command(child)
    return found


def actors_of(pid: int) -> list[int]:
    """Return the descendants that run our workers."""
    return sorted(p for p, command in descendants(pid).items() if command.startswith(ACTOR))


def raylet_of(pid: int) -> int | None:
    """Return the process of the Ray node, or None if it is not running."""
    return next((p for p, command in descendants(pid).items() if RAYLET in command), None)


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return _state(Path(f"/proc/{pid}")) not in ("Z", "X", "")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # the process has ended
        return b""


def _stat(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(process: Path) -> str:
    return (_stat(process) or [""])[0]


def _parent(process: Path) -> int:
    return int((_stat(process) or ["", "0"])[1])
