"""Residents' constant knowledge of their town: its places, and the shortest path to each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

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


class Atlas:
    """A town's map for its residents; tiles are the world's, `left` tiles east of the map's.

    `paths` are those of `grid`; None: new ones.
    """

    def __init__(self, grid: GridMap, left: int = 0, paths: Paths | None = None) -> None:
        self.grid, self.left = grid, left
        self._paths = paths or Paths(grid)

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

    def arena(self, tile: Tile) -> str:
        """The arena of a tile, as `sector: arena`; empty outside of all arenas."""
        name: str = self.grid.arena_names[self.grid.arenas[tile[1], tile[0] - self.left]]
        return name

    def can_walk(self, here: Tile, there: Tile) -> bool:
        """Whether there is a path."""
        return self._first_move(here, there) is not None

    def toward(self, here: Tile, there: Tile) -> str:
        """The first move of a shortest walk; "stay" if there is no path."""
        return self._first_move(here, there) or "stay"

    def _first_move(self, here: Tile, there: Tile) -> str | None:
        left = self.left
        return self._paths.first_move((here[0] - left, here[1]), (there[0] - left, there[1]))
