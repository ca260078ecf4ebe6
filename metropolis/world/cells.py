"""Cells that find what is near a position: squares of the plane, or nodes of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from math import floor, isinf

from metropolis.rules.metrics import Hops, Metric
from metropolis.types import Position

Cell = tuple[int, int]
_ROUNDING = 1e-6
"""More than the spacing of floats at coordinates of 1e9."""


class Cells:
    """The cells of one world; `radius` is the usual search radius."""

    def __init__(self, metric: Metric, radius: float) -> None:
        # More than the radius: rounding puts nothing within it two cells away.
        self._radius, self._size = radius, max(1.0, radius) + 2 * _ROUNDING
        self._graph = metric if isinstance(metric, Hops) else None
        self.neighbours_radius = -1.0 if self._graph else radius
        """All within this distance of a cell's positions is in the cell or in its neighbours.

        Negative: a cell of a graph has no neighbours.
        """

    def of(self, position: Position) -> Cell:
        """The cell of a position."""
        if self._graph:
            return int(position[0]), 0
        return floor(position[0] / self._size), floor(position[1] / self._size)

    def around(self, cell: Cell) -> Iterable[Cell]:
        """The cells that may contain something within `radius` of a position in `cell`."""
        return _ball(self._graph, cell[0], self._radius) if self._graph else neighbours(cell)

    def near(self, position: Position, radius: float, known: Collection[Cell]) -> Iterable[Cell]:
        """The `known` cells within a Chebyshev distance, possibly more.

        That distance is a lower bound of every metric of the plane.
        """
        if isinf(radius):
            return known
        if self._graph:
            return _ball(self._graph, int(position[0]), radius)
        return [cell for cell in _square(position, radius, self._size) if cell in known]


def neighbours(cell: Cell) -> list[Cell]:
    """A cell of the plane and the eight around it."""
    x, y = cell
    return [(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]


def _ball(graph: Hops, node: int, radius: float) -> list[Cell]:
    """The cells of the nodes within `radius` of a node."""
    return [(other, 0) for other in graph.ball(node, radius)]


@lru_cache(maxsize=4096)
def _square(position: Position, radius: float, size: float) -> tuple[Cell, ...]:
    """The cells of the plane, `size` wide, within `radius` of a position.

    Cached, because most agents stay where they are.
    """
    far, (x, y) = radius + _ROUNDING, position
    columns = range(floor((x - far) / size), floor((x + far) / size) + 1)
    rows = range(floor((y - far) / size), floor((y + far) / size) + 1)
    return tuple((x, y) for x in columns for y in rows)
