"""Cells that find what is near a position: squares of the plane, or nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, isinf

from metropolis.rules.metrics import Hops, Metric
from metropolis.types import Position

Cell = tuple[int, int]
_ROUNDING = 1e-6  # more than the spacing of floats at coordinates of 1e9


class Cells:
    """The cells of one world; `radius` is the usual search radius."""

    def __init__(self, metric: Metric, radius: float) -> None:
        self._metric, self._size = metric, max(1.0, radius)

    def of(self, position: Position) -> Cell:
        """The cell of a position."""
        if isinstance(self._metric, Hops):
            return int(position[0]), 0
        return floor(position[0] / self._size), floor(position[1] / self._size)

    def near(self, position: Position, radius: float, known: Iterable[Cell]) -> Iterable[Cell]:
        """The cells within a Chebyshev distance, a lower bound of every metric of the plane.

        Cells outside `known` are empty.
        """
        if isinf(radius):
            return known
        if isinstance(self._metric, Hops):
            return [(node, 0) for node in self._metric.ball(int(position[0]), radius)]
        far = radius + _ROUNDING
        left, top = self.of((position[0] - far, position[1] - far))
        right, bottom = self.of((position[0] + far, position[1] + far))
        return [(x, y) for x in range(left, right + 1) for y in range(top, bottom + 1)]
