"""Maps made of copies of a town side by side."""

from __future__ import annotations

import numpy as np

from metropolis.maps.map import GridMap


def side_by_side(grid: GridMap, times: int) -> GridMap:
    """`times` copies from west to east; arenas of copy k are named `name #k`, counted from 1."""
    arenas = [
        np.where(grid.arenas > 0, grid.arenas + k * (len(grid.arena_names) - 1), 0)
        for k in range(times)
    ]
    names = (f"{name} #{k}" for k in range(1, times + 1) for name in grid.arena_names[1:])
    return GridMap(
        f"{grid.name} x {times}",
        np.tile(grid.walls, (1, times)),
        np.concatenate(arenas, axis=1).astype(np.int32),
        ("", *names),
        np.tile(grid.objects, (1, times)),
        grid.object_names,
    )
