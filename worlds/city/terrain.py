"""The map of the city: towns from west to east, a road through all, and a railway.

A town is Alderbrook with a fenced road to both sides and two stations. Westbound trains run on a
track along its north wall, eastbound ones along its south wall; a platform lies between track and
town. Walls enclose the tracks, and each is one arena, into which no agent outside sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from metropolis.maps.map import GridMap
from metropolis.maps.tiling import side_by_side
from metropolis.maps.town import alderbrook
from metropolis.types import MetropolisError, Position, Step

Tile = tuple[int, int]

COLUMNS, ROWS = slice(9, 127), slice(6, 95)
"""The part of Alderbrook's map that a town has: without the meadows around it."""
LEFT, TOP = 6, 4
"""The tile at which that part begins on a town's map; each road out of town is LEFT tiles long."""
SHIFT = LEFT - COLUMNS.start, TOP - ROWS.start
"""The offset from a tile on Alderbrook's map to the same tile on a town's map."""
ROAD_ROWS = range(SHIFT[1] + 50, SHIFT[1] + 53)
PLATFORM = range(SHIFT[0] + 64, SHIFT[0] + 74)
"""The columns of the platforms."""
DOOR = range(PLATFORM.start + 4, PLATFORM.start + 6)
"""The columns of the doors from the town to the platforms."""
SEATS, PERIOD = 5, 60
"""Length of a carriage in tiles; steps between two carriages, and the tiles between their fronts.

All agents in a carriage are at most SEATS - 1 tiles apart, those in others further: a resident who
perceives SEATS - 1 tiles perceives the whole carriage, and no other agent.
"""
EAST, WEST = 1, -1
RAILWAY = "Valley Railway"

_FIRST = ("Ash", "Bex", "Carl", "Dun", "Elm", "Fern", "Gren", "Hart", "Kel", "Lang", "Mar", "Nor")
_MIDDLE = ("", "er", "ing", "en", "or")
_LAST = ("ford", "ley", "ham", "wick", "ton", "bury", "field", "stead")
_PAIRS = len(_FIRST) * len(_LAST)
TOWNS = (
    "Alderbrook",
    *(
        _FIRST[i % len(_FIRST)] + middle + _LAST[(i + i // len(_FIRST)) % len(_LAST)]
        for middle in _MIDDLE
        for i in range(_PAIRS)
    ),
)
"""The names of the towns, from west to east."""


def named(place: str, town: str) -> str:
    """The city's name for a place of a town: `sector`, `sector: arena`, or with an object."""
    sector, colon, rest = place.partition(": ")
    return f"{sector} of {town}{colon}{rest}"


def parts(place: str) -> tuple[str, str]:
    """The place within its town, and the town: the inverse of `named`; both empty if it is none."""
    sector, colon, rest = place.partition(": ")
    bare, of, town = sector.rpartition(" of ")
    return (f"{bare}{colon}{rest}", town) if of else ("", "")


@cache
def town_map() -> GridMap:
    """One town with its roads and stations; the tracks are walls."""
    town = alderbrook().map
    frame = ((TOP, TOP), (LEFT, LEFT))
    walls = np.pad(town.walls[ROWS, COLUMNS], frame, constant_values=True)
    arenas = np.pad(town.arenas[ROWS, COLUMNS], frame)
    objects = np.pad(town.objects[ROWS, COLUMNS], frame)
    walls[_span(ROAD_ROWS), :LEFT] = walls[_span(ROAD_ROWS), -LEFT:] = False
    names = list(town.arena_names)
    for side, name in ((WEST, "North Station"), (EAST, "South Station")):
        row = _platform_row(side)
        walls[row, _span(PLATFORM)] = walls[row - side, _span(DOOR)] = False
        arenas[row, _span(PLATFORM)] = len(names)
        names.append(f"{name}: platform")
    return GridMap(town.name, walls, arenas, tuple(names), objects, town.object_names)


def city_map(towns: int) -> GridMap:
    """The towns side by side. Raises MetropolisError when there are not enough names."""
    if towns > len(TOWNS):
        raise MetropolisError(f"city has names for {len(TOWNS)} towns, not for {towns}")
    grid = side_by_side(town_map(), towns, lambda name, number: named(name, TOWNS[number]))
    walls, arenas, names = grid.walls, grid.arenas, list(grid.arena_names)
    walls[:, 0] = walls[:, -1] = True
    last = (towns - 1) * town_map().width
    for side, name in ((WEST, "westbound"), (EAST, "eastbound")):
        # A line ends at its last platform, so that no agent is carried past it.
        line = slice(PLATFORM[0], -1) if side == WEST else slice(1, last + PLATFORM[-1] + 1)
        walls[_track_row(side), line] = False
        arenas[_track_row(side), line] = len(names)
        names.append(f"{RAILWAY}: {name}")
    return GridMap("city", walls, arenas, tuple(names), grid.objects, grid.object_names)


@dataclass(frozen=True)
class Railway:
    """The positions of carriages: a carriage moves one tile in each step, and never stops.

    The carriages of a line are PERIOD tiles apart, so one passes a platform tile every PERIOD
    steps.
    """

    def direction(self, position: Position) -> int:
        """EAST or WEST on a track, 0 elsewhere."""
        return _DIRECTIONS.get(int(position[1]), 0)

    def seat(self, tile: Tile, step: Step) -> int:
        """The number of the seat on a track's tile at the beginning of `step`.

        At least SEATS: there is no carriage on the tile.
        """
        return (tile[0] - self.direction(tile) * step) % PERIOD

    def platform(self, tile: Tile) -> Tile | None:
        """The platform tile beside a track's tile; None: there is none."""
        if tile[0] % town_map().width not in PLATFORM:
            return None
        return tile[0], _platform_row(self.direction(tile))

    def boarding(self, town: int, side: int, spot: int) -> tuple[Tile, Tile]:
        """The platform tile `spot` (any number) of a town's station, and the track beside it."""
        x = town * town_map().width + PLATFORM[spot % len(PLATFORM)]
        return (x, _platform_row(side)), (x, _track_row(side))


def _span(of: range) -> slice:
    return slice(of.start, of.stop)


def _track_row(side: int) -> int:
    return 1 if side == WEST else TOP + ROWS.stop - ROWS.start + TOP - 2


def _platform_row(side: int) -> int:
    return _track_row(side) - side


_DIRECTIONS = {_track_row(side): side for side in (EAST, WEST)}
