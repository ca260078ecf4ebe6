"""Where imported people live, also if the files name a place that the map does not have."""

from __future__ import annotations

from metropolis.maps.map import nearest
from metropolis.worlds.smallville.geography import Atlas, Tile


def stated_home(living_area: str) -> str:
    """`sector: arena` of `world:sector:arena`; what it lacks is empty."""
    sector, arena = [*map(str.strip, living_area.split(":")), "", ""][1:3]
    return f"{sector}: {arena}"


def home_of(living_area: str, atlas: Atlas, at: Tile) -> str:
    """The arena of `world:sector:arena`, as `sector: arena`; empty if the map has no arenas.

    If the map does not have this arena, it is an arena of the sector: that of the tile `at`, else
    one with a bed, else any. If it does not have the sector, it is the arena of `at`, or the
    nearest one.
    """
    stated, grid = stated_home(living_area), atlas.grid
    known = [name for name in grid.arena_names if name]
    if stated in known:
        return stated
    sector, _, _ = stated.partition(": ")
    rooms = [name for name in known if name.startswith(f"{sector}: ")]
    here = atlas.arena(at)
    if rooms and here not in rooms:
        return min(rooms, key=lambda room: (not atlas.tiles(f"{room}: bed"), room))
    inside = (grid.arenas > 0) & ~grid.walls
    return here or (atlas.arena(nearest(inside, at)) if inside.any() else "")
