"""Residents' constant knowledge of their town: its places, and the shortest path to each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap

Tile = tuple[int, int]
MOVES: Mapping[str, Tile] = {
    "stay": (0, 0),
    "east": (1, 0),
    "west": (-1, 0),
    "south": (0, 1),
    "north": (0, -1),
}
_FAR = np.iinfo(np.int16).max


class Atlas:
    """A town's map for its residents; tiles are the world's, `left` tiles east of the map's.

    Distances to a tile are computed on first use and cached.
    """

    def __init__(self, grid: GridMap, left: int = 0) -> None:
        self.grid, self.left = grid, left
        self._fields: dict[Tile, list[list[int]]] = {}

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

    def steps(self, here: Tile, there: Tile) -> int | None:
        """The length of the shortest walk in steps; None: there is no path."""
        far = self._field(there)[here[1] + 1][here[0] - self.left + 1]
        return None if far == _FAR else far

    def toward(self, here: Tile, there: Tile) -> str:
        """The first move of a shortest walk; ties are broken deterministically."""
        if here == there:
            return "stay"
        field, x, y = self._field(there), here[0] - self.left + 1, here[1] + 1
        best, found = field[y][x], "stay"
        for move, (dx, dy) in MOVES.items():
            if field[y + dy][x + dx] < best:
                best, found = field[y + dy][x + dx], move
        return found

    def _field(self, goal: Tile) -> list[list[int]]:
        """Steps to `goal` from every tile; the array has a border of walls."""
        if goal not in self._fields:
            self._fields[goal] = self._measure(goal).tolist()
        return self._fields[goal]

    @cached_property
    def _free(self) -> npt.NDArray[np.bool_]:
        return np.pad(~self.grid.walls, 1)

    def _measure(self, goal: Tile) -> npt.NDArray[np.int16]:
        free = self._free.copy()
        width = free.shape[1]
        around = np.array([[1], [-1], [width], [-width]])
        unvisited = free.reshape(-1)
        far = np.full(unvisited.shape, _FAR, np.int16)
        edge = np.array([(goal[1] + 1) * width + goal[0] - self.left + 1])
        unvisited[edge] = False
        far[edge] = steps = 0
        while edge.size:
            steps += 1
            edge = (edge + around).reshape(-1)
            edge = edge[unvisited[edge]]
            unvisited[edge] = False
            far[edge] = steps
            edge = edge[np.unique(edge, return_index=True)[1]] if edge.size > 1 else edge
        return far.reshape(free.shape)
