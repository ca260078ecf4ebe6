"""Shortest paths on a walled grid, one 4-neighbour tile a step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap

Tile = tuple[int, int]


class Ways:
    """Shortest paths of one map; the breadth-first search from each goal is cached."""

    def __init__(self, grid: GridMap) -> None:
        self._width = grid.width + 2
        # A surrounding wall makes bounds checks in the search unnecessary.
        self._free = ~np.pad(grid.walls, 1, constant_values=True).ravel()
        self._sides = (1, -1, self._width, -self._width)
        self._fields: dict[int, npt.NDArray[np.int32]] = {}

    def path(self, start: Tile, goal: Tile) -> list[Tile]:
        """The tiles from `start` (exclusive) to `goal` (inclusive), which must be reachable."""
        field = self._field(self._index(goal))
        at, tiles = self._index(start), []
        while field[at] > 0:
            # A fixed order of directions gives straight lines, and one path per pair.
            at = next(at + step for step in self._sides if field[at + step] == field[at] - 1)
            y, x = divmod(at, self._width)
            tiles.append((x - 1, y - 1))
        return tiles

    def distance(self, start: Tile, goal: Tile) -> int:
        """Steps from `start` to `goal`; -1 if there is no path."""
        return int(self._field(self._index(goal))[self._index(start)])

    def _index(self, tile: Tile) -> int:
        return (tile[1] + 1) * self._width + tile[0] + 1

    def _field(self, goal: int) -> npt.NDArray[np.int32]:
        """Steps to `goal` from each tile of the padded grid; -1 where there is no path."""
        if goal not in self._fields:
            field = np.full(self._free.shape, -1, np.int32)
            border = np.array([goal] if self._free[goal] else [], np.int64)
            steps = 0
            while border.size:
                field[border] = steps
                reached = np.concatenate([border + step for step in self._sides])
                border = np.unique(reached[self._free[reached] & (field[reached] < 0)])
                steps += 1
            self._fields[goal] = field
        return self._fields[goal]
