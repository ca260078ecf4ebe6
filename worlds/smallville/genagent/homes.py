"""Where imported people live and stand, if the files name a place that the map does not have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap
from metropolis.worlds.smallville.geography import Atlas, Tile


def free_tile(grid: GridMap, at: Tile) -> Tile:
    """The tile itself if it is free, else the nearest free one, of the same arena if there is one.

    The project's people can stand on a wall.
    """
    if not grid.walls[at[1], at[0]]:
        return at
    within = grid.arenas == grid.arenas[at[1], at[0]]
    free = ~grid.walls & within
    return _nearest(free if free.any() else ~grid.walls, at)


def home_of(living_area: str, atlas: Atlas, at: Tile) -> str:
    """The arena of `world:sector:arena`, as `sector: arena`; empty if the map has no arenas.

    Without this arena, of the sector the arena of the tile `at`, else one with a bed, else any.
    Without this sector the arena of `at`, or the nearest one.
    """
    sector, arena = [*map(str.strip, living_area.split(":")), "", ""][1:3]
    grid = atlas.grid
    known = [name for name in grid.arena_names if name]
    if f"{sector}: {arena}" in known:
        return f"{sector}: {arena}"
    rooms = [name for name in known if name.startswith(f"{sector}: ")]
    here = atlas.arena(at)
    if rooms and here not in rooms:
        return min(rooms, key=lambda room: (not atlas.tiles(f"{room}: bed"), room))
    inside = (grid.arenas > 0) & ~grid.walls
    return here or (atlas.arena(_nearest(inside, at)) if inside.any() else "")


def _nearest(among: npt.NDArray[np.bool_], at: Tile) -> Tile:
    return min(
        ((x, y) for y, x in np.argwhere(among).tolist()),
        key=lambda to: (abs(to[0] - at[0]) + abs(to[1] - at[1]), to),
    )
