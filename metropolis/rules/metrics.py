"""Metrics: how far a walker must travel to come into what another perceives.

Every rule is stated through one predicate. ``within(p, q, radius, reach)``: a walker standing at q
can, by travelling at most `reach`, come within perception distance `radius` of p. Perception and
movement may have different shapes, so p (who perceives) and q (who travels) are not
interchangeable unless `reach` is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from metropolis.types import MetropolisError, Position
from metropolis.world.map import GridMap

COORDINATE_MAX = 1e9
"""Beyond it doubles no longer tell neighbouring places apart reliably."""


class Metric(Protocol):
    """What rules and controllers ask of a world's geometry."""

    @property
    def name(self) -> str:
        """As it is written in a trace and on the command line."""

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """Whether a walker at q, travelling at most `reach`, can come within `radius` of p.

        May err towards True (the distance may be replaced by a lower bound), never towards False.
        """

    def flaw(self, p: Position) -> str | None:
        """Why nobody can stand at p; None when somebody can."""


@dataclass(frozen=True)
class PlaneMetric:
    """One distance for perception and movement: within iff distance <= radius + reach."""

    name: str
    distance: Callable[[float, float], float]
    """Distance spanned by (|dx|, |dy|)."""

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`; symmetric in p and q."""
        return self.distance(abs(p[0] - q[0]), abs(p[1] - q[1])) <= radius + reach

    def flaw(self, p: Position) -> str | None:
        """See `Metric.flaw`."""
        if abs(p[0]) <= COORDINATE_MAX and abs(p[1]) <= COORDINATE_MAX:
            return None
        return f"its coordinates must lie within ±{COORDINATE_MAX:g}"


CHEBYSHEV = PlaneMetric("chebyshev", max)
EUCLIDEAN = PlaneMetric("euclidean", lambda dx, dy: math.sqrt(dx * dx + dy * dy))
MANHATTAN = PlaneMetric("manhattan", lambda dx, dy: dx + dy)


class Geodesic:
    """Perceives a Chebyshev square of tiles, moves by 4-neighbour walk round walls (GenAgent).

    Within iff the walk from q to the nearest walkable tile of the square of `radius` round p takes
    at most `reach` steps. Walks longer than `horizon` are not measured: their lower bound
    ``max(horizon + 1, what it would take without walls)`` stands for them. Walls hold nothing that
    could be perceived, and nobody stands on one.
    """

    name = "geodesic"

    def __init__(self, walls: npt.NDArray[np.bool_], horizon: int = 96) -> None:
        """`walls` is (height, width); `horizon` is in steps, 1 to 250."""
        if walls.ndim != 2 or not walls.size:
            raise MetropolisError(
                f"walls have the shape {walls.shape}; the geodesic metric needs (height, width)"
            )
        if not 1 <= horizon <= 250:
            raise MetropolisError(f"the geodesic horizon is {horizon}; it must be 1 to 250 steps")
        self.walls = np.ascontiguousarray(walls, dtype=np.bool_)
        self.horizon = horizon
        self._walks = lru_cache(maxsize=256)(self._walks_to_square)

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`."""
        beyond = [max(0.0, abs(p[i] - q[i]) - radius) for i in (0, 1)]
        if radius < 0 or sum(beyond) > reach:
            return False
        if sum(beyond) == 0 or reach >= self.horizon + 1:
            return True
        walks = self._walks(int(p[0]), int(p[1]), math.floor(radius))
        return walks.get((int(q[0]), int(q[1])), math.inf) <= reach

    def flaw(self, p: Position) -> str | None:
        """See `Metric.flaw`."""
        height, width = self.walls.shape
        if not (
            0 <= p[0] < width and 0 <= p[1] < height and p[0] == int(p[0]) and p[1] == int(p[1])
        ):
            return f"it must be a tile of the map, which is {width} x {height}"
        if self.walls[int(p[1]), int(p[0])]:
            return "it is a wall"
        return None

    def _walks_to_square(self, x: int, y: int, radius: int) -> dict[tuple[int, int], int]:
        """Steps from every tile at most `horizon` steps away to the square round (x, y)."""
        height, width = self.walls.shape
        edge = [
            (i, j)
            for j in range(max(0, y - radius), min(height, y + radius + 1))
            for i in range(max(0, x - radius), min(width, x + radius + 1))
            if not self.walls[j, i]
        ]
        walks = dict.fromkeys(edge, 0)
        for steps in range(1, self.horizon + 1):
            following = []
            for i, j in edge:
                for tile in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                    inside = 0 <= tile[0] < width and 0 <= tile[1] < height
                    if inside and tile not in walks and not self.walls[tile[1], tile[0]]:
                        walks[tile] = steps
                        following.append(tile)
            edge = following
        return walks


class Hops:
    """Distance in a graph, for perception and movement alike; positions are (node, 0)."""

    name = "hops"

    def __init__(self, neighbours: Sequence[Sequence[int]]) -> None:
        """`neighbours[i]` are the nodes next to node i; every edge must be listed at both ends."""
        sets = [set(of) for of in neighbours]
        for node, of in enumerate(sets):
            for other in of:
                if other not in range(len(sets)) or node not in sets[other]:
                    raise MetropolisError(
                        f"node {node} lists {other} as a neighbour, but not the other way round; "
                        "list every edge at both ends"
                    )
        self.neighbours = tuple(tuple(sorted(of)) for of in sets)
        self._hops = lru_cache(maxsize=4096)(self._hops_from)

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`; symmetric in p and q."""
        return self._hops(int(p[0])).get(int(q[0]), math.inf) <= radius + reach

    def flaw(self, p: Position) -> str | None:
        """See `Metric.flaw`."""
        if 0 <= p[0] < len(self.neighbours) and p[0] == int(p[0]) and p[1] == 0:
            return None
        return f"it must be (node, 0) with a node below {len(self.neighbours)}"

    def _hops_from(self, node: int) -> dict[int, int]:
        hops = {node: 0}
        edge = [node]
        while edge:
            following = [i for j in edge for i in self.neighbours[j] if i not in hops]
            hops.update((i, hops[edge[0]] + 1) for i in following)
            edge = list(dict.fromkeys(following))
        return hops


PLANE_METRICS = {metric.name: metric for metric in (CHEBYSHEV, EUCLIDEAN, MANHATTAN)}


def metric_named(name: str, grid: GridMap | None = None) -> Metric:
    """The metric a trace or the command line names; `geodesic` needs the map's walls.

    Raises MetropolisError for an unknown name, and for `geodesic` without a map. A graph has no
    name: construct `Hops` from its neighbours.
    """
    if name == "geodesic":
        if grid is None:
            raise MetropolisError("the metric geodesic needs a map, and the trace has none")
        return Geodesic(grid.walls)
    if name not in PLANE_METRICS:
        known = ", ".join([*PLANE_METRICS, "geodesic"])
        raise MetropolisError(f"there is no metric {name!r}; there are {known}")
    return PLANE_METRICS[name]
