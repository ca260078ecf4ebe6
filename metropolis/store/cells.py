"""Spatial cells of values, so that a claim contains a cluster's surroundings, not the world.

Cells are squares of the plane, large enough that few are read at a time, or nodes of a graph. The
committer knows all positions, so it computes the cells around an agent, and a store needs no
geometry.
"""

from __future__ import annotations

from functools import lru_cache
from math import floor, inf, isinf

from metropolis.rules.metrics import Hops
from metropolis.store.base import RunInfo
from metropolis.types import Position

_ROUNDING = 1e-6  # above the spacing of coordinates near 1e9


class Cells:
    """The cells of one run, as strings."""

    def __init__(self, info: RunInfo) -> None:
        self._graph = None if info.graph is None else Hops(info.graph)
        self._radius = inf if info.radius is None else info.radius
        self._side = max(1.0, 2 * self._radius)
        self.around_text = lru_cache(maxsize=65_536)(
            lambda at, far=0.0: " ".join(self.around(at, far))
        )
        """The result of `around`, separated by spaces."""

    def of(self, position: Position) -> str:
        """The cell that contains `position`."""
        if isinf(self._radius):
            return "0"
        if self._graph is not None:
            return str(int(position[0]))
        return f"{floor(position[0] / self._side)},{floor(position[1] / self._side)}"

    def around(self, position: Position, far: float = 0.0) -> list[str]:
        """All cells that may contain something within `far` plus the run's radius of `position`.

        In the plane every metric is at least Chebyshev's distance, so its square contains them all.
        """
        if isinf(self._radius):
            return ["0"]
        if self._graph is not None:
            return [str(node) for node in self._graph.ball(int(position[0]), self._radius + far)]
        radius = self._radius + far + _ROUNDING
        (left, right), (top, bottom) = (
            (floor((at - radius) / self._side), floor((at + radius) / self._side))
            for at in position
        )
        return [f"{x},{y}" for x in range(left, right + 1) for y in range(top, bottom + 1)]


def reach_of(radius: float, velocity: float) -> float | None:
    """The radius of a RunInfo."""
    reach = max(radius, velocity)
    return None if reach == inf else reach
