"""Maps made of copies of a town side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metropolis.maps.map import GridMap


def _numbered(name: str, copy: int) -> str:
    return f"{name} #{copy + 1}"


def side_by_side(
    grid: GridMap, times: int, named: Callable[[str, int], str] = _numbered
) -> GridMap:
    """`times` copies from west to east.

    `named` gives the name of an arena in a copy, counted from 0; by default `name #1` and so on.
    """
    arenas = [
        np.where(grid.arenas > 0, grid.arenas + k * (len(grid.arena_names) - 1), 0)
        for k in range(times)
    ]
    names = (named(name, k) for k in range(times) for name in grid.arena_names[1:])
    return GridMap(
        f"{grid.name} x {times}",
        np.tile(grid.walls, (1, times)),
        np.concatenate(arenas, axis=1).astype(np.int32),
        ("", *names),
        np.tile(grid.objects, (1, times)),
        grid.object_names,
    )
