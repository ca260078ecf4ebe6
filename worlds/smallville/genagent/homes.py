"""Where imported people live and stand, if the files name a place that the map does not have."""

from __future__ import annotations

import numpy as np

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
    return min(
        ((x, y) for y, x in np.argwhere(free if free.any() else ~grid.walls).tolist()),
        key=lambda to: (abs(to[0] - at[0]) + abs(to[1] - at[1]), to),
    )


def home_of(living_area: str, atlas: Atlas, at: Tile) -> str:
    """The arena of `world:sector:arena`, as `sector: arena`; empty if there is none.

    Without this arena, of the sector the arena of the tile `at`, else one with a bed, else any.
    Without this sector the arena of `at`.
    """
    sector, arena = [*map(str.strip, living_area.split(":")), "", ""][1:3]
    known = [name for name in atlas.grid.arena_names if name]
    if f"{sector}: {arena}" in known:
        return f"{sector}: {arena}"
    here = atlas.arena(at)
    rooms = [name for name in known if name.startswith(f"{sector}: ")]
    if not rooms or here in rooms:
        return here
    return min(rooms, key=lambda room: (not atlas.tiles(f"{room}: bed"), room))
