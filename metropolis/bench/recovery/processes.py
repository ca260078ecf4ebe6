"""The processes below one of ours, as /proc has them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

ACTOR = b"ray::_Actor"
RAYLET = b"/raylet/raylet\0"


def below(pid: int) -> dict[int, bytes]:
    """The command lines of all descendants of `pid`, by their ids."""
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


def actors_below(pid: int) -> list[int]:
    """Those in which our workers run."""
    return sorted(p for p, command in below(pid).items() if command.startswith(ACTOR))


def raylet_below(pid: int) -> int | None:
    """The process of Ray's node; None: not yet, or no longer."""
    return next((p for p, command in below(pid).items() if RAYLET in command), None)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return _state(Path(f"/proc/{pid}")) not in ("Z", "X", "")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
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
