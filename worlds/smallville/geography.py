"""Residents' constant knowledge of their town: its places, and the shortest path to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property
from itertools import chain

import numpy as np

from metropolis.maps.map import GridMap

Tile = tuple[int, int]
MOVES: Mapping[str, Tile] = {
    "stay": (0, 0),
    "east": (1, 0),
    "west": (-1, 0),
    "south": (0, 1),
    "north": (0, -1),
}
_NAMES = tuple(MOVES)
_NO_PATH = len(MOVES)


class Paths:
    """The shortest walks on a map, tile by tile; computed for a goal on first use.

    A goal takes one byte per tile. Towns with equal maps share them.
    """

    def __init__(self, grid: GridMap) -> None:
        self._free = np.pad(~grid.walls, 1)
        self._width = self._free.shape[1]
        self._moves: dict[Tile, bytes] = {}

    def first_move(self, here: Tile, there: Tile) -> str | None:
        """The first move of a shortest walk; None: there is no path. Ties go by `MOVES`."""
        moves = self._moves.get(there)
        if moves is None:
            moves = self._moves[there] = self._measure(there)
        move = moves[(here[1] + 1) * self._width + here[0] + 1]
        return None if move == _NO_PATH else _NAMES[move]

    def walk(self, here: Tile, there: Tile) -> list[Tile]:
        """The tiles of a shortest walk, both ends included; empty if there is no path."""
        tiles = [here]
        while tiles[-1] != there:
            move = self.first_move(tiles[-1], there)
            if move is None:
                return []
            dx, dy = MOVES[move]
            tiles.append((tiles[-1][0] + dx, tiles[-1][1] + dy))
        return tiles

    def _measure(self, goal: Tile) -> bytes:
        """The number of the first move from each tile, in rows with a border of walls."""
        unvisited = self._free.reshape(-1).copy()
        moves = np.full(unvisited.shape, _NO_PATH, np.uint8)
        offsets = [dx + dy * self._width for dx, dy in MOVES.values()]
        edge = np.array([(goal[1] + 1) * self._width + goal[0] + 1])
        unvisited[edge] = False
        moves[edge] = _NAMES.index("stay")
        while edge.size:
            reached = []
            for number, offset in enumerate(offsets):
                begins = edge - offset
                begins = begins[unvisited[begins]]
                unvisited[begins] = False
                moves[begins] = number
                reached.append(begins)
            edge = np.concatenate(reached)
        return moves.tobytes()


class Sights:
    """What there is to see from each tile of a map; computed on first use.

    Towns with equal maps share them.
    """

    def __init__(self, grid: GridMap) -> None:
        self._grid = grid
        self._addresses = [
            [_address(grid, x, y) for x in range(grid.width)] for y in range(grid.height)
        ]
        self._all = sorted({*grid.arena_names, *chain.from_iterable(self._addresses)} - {""})
        self._within: dict[str, tuple[str, ...]] = {}
        self._near: dict[tuple[Tile, int], tuple[tuple[int, Tile, str], ...]] = {}
        self._places: dict[tuple[Tile, int], tuple[str, ...]] = {}

    def thing(self, tile: Tile) -> str:
        """The object on a tile, as `sector: arena: name`; empty if there is none."""
        address = self._addresses[tile[1]][tile[0]]
        return address if address.count(": ") == 2 else ""

    def things_near(self, tile: Tile, radius: int) -> tuple[tuple[int, Tile, str], ...]:
        """(squared distance, tile, object) within the square of a tile and its arena, sorted."""
        near = self._near.get((tile, radius))
        if near is None:
            arenas = self._grid.arenas
            near = self._near[tile, radius] = tuple(
                sorted(
                    ((x - tile[0]) ** 2 + (y - tile[1]) ** 2, (x, y), thing)
                    for x, y in self._square(tile, radius)
                    if (thing := self.thing((x, y))) and arenas[y, x] == arenas[tile[1], tile[0]]
                )
            )
        return near

    def places(self, tile: Tile, radius: int) -> tuple[str, ...]:
        """The addresses within the square of a tile, of its own and of all other arenas."""
        found = self._places.get((tile, radius))
        if found is None:
            seen = {self._addresses[y][x] for x, y in self._square(tile, radius)} - {""}
            found = self._places[tile, radius] = tuple(sorted(seen))
        return found

    def within(self, place: str) -> tuple[str, ...]:
        """The addresses of a sector, an arena or an object, and of all in it."""
        found = self._within.get(place)
        if found is None:
            found = self._within[place] = tuple(
                address for address in self._all if f"{address}: ".startswith(f"{place}: ")
            )
        return found

    def _square(self, tile: Tile, radius: int) -> list[Tile]:
        rows = range(max(0, tile[1] - radius), min(self._grid.height, tile[1] + radius + 1))
        columns = range(max(0, tile[0] - radius), min(self._grid.width, tile[0] + radius + 1))
        return [(x, y) for x in columns for y in rows]


def _address(grid: GridMap, x: int, y: int) -> str:
    """`sector: arena: object` of a tile, or a part of it."""
    arena, thing = grid.arena_names[grid.arenas[y, x]], grid.object_names[grid.objects[y, x]]
    return f"{arena}: {thing}" if arena and thing and not grid.walls[y, x] else arena


class Atlas:
    """A town's map for its residents; tiles are the world's, `left` tiles east of the map's."""

    def __init__(self, grid: GridMap, left: int = 0) -> None:
        self.grid, self.left = grid, left
        self._paths, self._sights = Paths(grid), Sights(grid)

    def moved(self, left: int) -> Atlas:
        """An equal town, `left` tiles east of the map's, which shares what has been computed."""
        atlas = copy(self)
        atlas.left = left
        vars(atlas).pop("places", None)  # computed for the other tiles
        return atlas

    def __deepcopy__(self, memo: object) -> Atlas:
        """Copies of residents share their atlas: it only caches."""
        return self

    @cached_property
    def places(self) -> Mapping[str, Mapping[str, Mapping[str, tuple[Tile, ...]]]]:
        """Sector -> arena -> object -> its tiles, west to east."""
        found: dict[str, dict[str, dict[str, list[Tile]]]] = {}
        grid = self.grid
        for y, x in np.argwhere((grid.arenas > 0) & (grid.objects > 0) & ~grid.walls).tolist():
            sector, arena = grid.arena_names[grid.arenas[y, x]].split(": ", 1)
            thing = grid.object_names[grid.objects[y, x]]
            tiles = found.setdefault(sector, {}).setdefault(arena, {}).setdefault(thing, [])
            tiles.append((x + self.left, y))
        return {
            sector: {
                arena: {thing: tuple(sorted(tiles)) for thing, tiles in things.items()}
                for arena, things in arenas.items()
            }
            for sector, arenas in found.items()
        }

    def within(self, place: str) -> tuple[str, ...]:
        """Every `sector: arena` and `sector: arena: object` of a sector, an arena or an object."""
        return self._sights.within(place)

    def tiles(self, address: str) -> tuple[Tile, ...]:
        """The tiles of an object, `sector: arena: object`, or the free tiles of an arena.

        There are none if the map has no such place.
        """
        sector, arena, thing = (*address.split(": "), "", "")[:3]
        if thing:
            return self.places.get(sector, {}).get(arena, {}).get(thing, ())
        if not address or address not in self.grid.arena_names:
            return ()
        number = self.grid.arena_names.index(address)
        free = np.argwhere((self.grid.arenas == number) & ~self.grid.walls).tolist()
        return tuple((x + self.left, y) for y, x in free)

    def arena(self, tile: Tile) -> str:
        """The arena of a tile, as `sector: arena`; empty outside of all arenas."""
        name: str = self.grid.arena_names[self.grid.arenas[tile[1], tile[0] - self.left]]
        return name

    def thing(self, tile: Tile) -> str:
        """The object on a tile, as `sector: arena: name`; empty if there is none."""
        return self._sights.thing((tile[0] - self.left, tile[1]))

    def things_near(self, tile: Tile, radius: int) -> Iterator[tuple[int, Tile, str]]:
        """(squared distance, tile, object) within `radius` tiles and the arena, nearest first."""
        left = self.left
        for distance, (x, y), thing in self._sights.things_near((tile[0] - left, tile[1]), radius):
            yield distance, (x + left, y), thing

    def sights(self, tile: Tile, radius: int) -> tuple[str, ...]:
        """Every `sector: arena` and `sector: arena: object` within the square of a tile."""
        return self._sights.places((tile[0] - self.left, tile[1]), radius)

    def carried(self, tile: Tile) -> bool:
        """Whether the world moves those who stand on a tile."""
        return False

    def walk(self, here: Tile, there: Tile) -> list[Tile]:
        """The tiles of a shortest walk, both ends included; empty if there is no path."""
        left = self.left
        walk = self._paths.walk((here[0] - left, here[1]), (there[0] - left, there[1]))
        return [(x + left, y) for x, y in walk]

    def toward(self, here: Tile, there: Tile) -> str:
        """The first move of a shortest walk; "stay" if there is no path."""
        left = self.left
        move = self._paths.first_move((here[0] - left, here[1]), (there[0] - left, there[1]))
        return move or "stay"
