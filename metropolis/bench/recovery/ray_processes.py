"""The processes of a run on Ray."""

from __future__ import annotations

from metropolis.bench._processes import command_of, descendants

ACTOR = b"ray::_Actor"
RAYLET = b"/raylet/raylet\0"


def actors_of(pid: int) -> list[int]:
    """Return the descendants that run our workers."""
    return sorted(one for one in descendants(pid) if command_of(one).startswith(ACTOR))


def raylet_of(pid: int) -> int | None:
    """Return the process of the Ray node, or None if it is not running."""
    return next((one for one in descendants(pid) if RAYLET in command_of(one)), None)
