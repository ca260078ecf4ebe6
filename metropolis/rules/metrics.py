"""Metrics: how far a walker must travel to come into the perception of another agent.

Every rule is stated through one predicate, ``within(p, q, radius, reach)``: a walker at q can, by
travelling at most `reach`, come within perception distance `radius` of p. Perception and movement
may have different shapes, so p (the perceiver) and q (the walker) are not interchangeable unless
`reach` is 0.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap
from metropolis.names import check_name
from metropolis.types import MetropolisError, Position

GENAGENT_VELOCITY_MAX = 100
"""Walks of twice this length must be countable in a byte."""
NEAR_STEPS = 2
"""Clusters and moves query every step with at most this reach, for which long walks are skipped."""
COORDINATE_MAX = 1e9
"""Beyond this, doubles do not distinguish neighbouring places reliably."""


class Metric(Protocol):
    """The geometry of a world, as rules and controllers query it."""

    @property
    def name(self) -> str:
        """The name in traces and on the command line."""

    @property
    def uniform(self) -> bool:
        """Whether moving p by v never brings q closer by more than v."""

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """Whether a walker at q, travelling at most `reach`, can come within `radius` of p.

        A wrong True is allowed (a lower bound may replace the distance), a wrong False is not.
        """

    def perceives(self, p: Position, q: Position, radius: float) -> bool:
        """Whether an agent at p perceives q; symmetric, and implies ``within(p, q, radius, 0)``."""

    def flaw(self, p: Position) -> str | None:
        """The reason why no agent can stand at p; None: p is valid."""


@dataclass(frozen=True)
class PlaneMetric:
    """One distance for perception and movement: within iff distance <= radius + reach."""

    name: str
    distance: Callable[[float, float], float]
    """Distance spanned by (|dx|, |dy|)."""

    @property
    def uniform(self) -> bool:
        """See `Metric.uniform`."""
        return True

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`; symmetric in p and q."""
        return self.distance(abs(p[0] - q[0]), abs(p[1] - q[1])) <= radius + reach

    def perceives(self, p: Position, q: Position, radius: float) -> bool:
        """See `Metric.perceives`."""
        return self.within(p, q, radius, 0)

    def flaw(self, p: Position) -> str | None:
        """See `Metric.flaw`."""
        if abs(p[0]) <= COORDINATE_MAX and abs(p[1]) <= COORDINATE_MAX:
            return None
        return f"its coordinates must lie within ±{COORDINATE_MAX:g}"


CHEBYSHEV = PlaneMetric("chebyshev", max)
EUCLIDEAN = PlaneMetric("euclidean", lambda dx, dy: math.sqrt(dx * dx + dy * dy))
MANHATTAN = PlaneMetric("manhattan", lambda dx, dy: dx + dy)


Tile = tuple[int, int]


def _tile(p: Position) -> Tile:
    return int(p[0]), int(p[1])


class _Tiles:
    """Tiles and walls; a step leads to a 4-neighbour that is not a wall.

    Walks longer than `horizon` are replaced by a lower bound, ``max(horizon + 1, d)`` with d the
    distance without walls.
    """

    def __init__(self, walls: npt.NDArray[np.bool_], horizon: int = 96) -> None:
        """`walls` is (height, width); `horizon` is in steps, 1 to 250."""
        if np.ndim(walls) != 2 or not np.size(walls):
            raise MetropolisError(
                f"walls have the shape {np.shape(walls)}; the metric needs (height, width)"
            )
        if not 1 <= horizon <= 250:
            raise MetropolisError(f"the horizon is {horizon}; it must be 1 to 250 steps")
        self.walls = np.ascontiguousarray(walls, dtype=np.bool_)
        self.horizon = horizon

    def flaw(self, p: Position) -> str | None:
        """See `Metric.flaw`."""
        height, width = self.walls.shape
        if not all(
            0 <= i < size and i == int(i) for i, size in zip(p, (width, height), strict=True)
        ):
            return f"it must be a tile of the map, which is {width} x {height}"
        if self.walls[int(p[1]), int(p[0])]:
            return "it is a wall"
        return None

    def _square(self, x: int, y: int, radius: int) -> list[Tile]:
        """The tiles of the square of `radius` around (x, y), without walls."""
        height, width = self.walls.shape
        return [
            (i, j)
            for j in range(max(0, y - radius), min(height, y + radius + 1))
            for i in range(max(0, x - radius), min(width, x + radius + 1))
            if not self.walls[j, i]
        ]

    def _walks(self, starts: Sequence[Tile], longest: int) -> dict[Tile, int]:
        """Steps from the nearest of `starts` to every tile at most `longest` steps away."""
        height, width = self.walls.shape
        walks = dict.fromkeys(starts, 0)
        edge = list(starts)
        for steps in range(1, longest + 1):
            following = []
            for i, j in edge:
                for tile in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                    inside = 0 <= tile[0] < width and 0 <= tile[1] < height
                    if inside and tile not in walks and not self.walls[tile[1], tile[0]]:
                        walks[tile] = steps
                        following.append(tile)
            edge = following
        return walks


class Geodesic(_Tiles):
    """One distance for perception and movement: the length of the walk around walls.

    At least the Manhattan distance, hence the Euclidean one. Walls block perception.
    """

    name = "geodesic"
    uniform = True

    def __init__(self, walls: npt.NDArray[np.bool_], horizon: int = 96) -> None:
        """See `_Tiles`."""
        super().__init__(walls, horizon)
        self._from = lru_cache(maxsize=256)(lambda tile: self._walks([tile], horizon))

    def __reduce__(self) -> tuple[Any, ...]:  # without caches
        return Geodesic, (self.walls, self.horizon)

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`; symmetric in p and q."""
        far = radius + reach
        if abs(p[0] - q[0]) + abs(p[1] - q[1]) > far:
            return False
        if far >= self.horizon + 1:
            return True
        return self._from(_tile(p)).get(_tile(q), math.inf) <= far

    def perceives(self, p: Position, q: Position, radius: float) -> bool:
        """See `Metric.perceives`."""
        return self.within(p, q, radius, 0)


class GenAgent(_Tiles):
    """Perception as in GenAgent, a Chebyshev square cut to the arena; movement around walls.

    The two shapes differ, so `within` measures the walk into a *zone*: the tiles of the square of
    `radius` around p from which an agent can affect one at p or the reverse, if both move and
    write at most `max_velocity` away. A tile t is in the zone iff one of p and t is within
    `max_velocity` steps of the other's arena, or t is within twice as many of p. That covers every
    case of `metropolis.rules.rules`: p perceives (the same arena), p writes and others perceive (or
    the reverse), and two writers meet.
    """

    name = "genagent"
    uniform = False  # a step may lead through a door

    def __init__(
        self,
        walls: npt.NDArray[np.bool_],
        arenas: npt.NDArray[np.integer],
        max_velocity: float,
        horizon: int = 96,
    ) -> None:
        """See `_Tiles`; `arenas` is (height, width), equal numbers are one arena."""
        super().__init__(walls, horizon)
        if np.shape(arenas) != self.walls.shape:
            raise MetropolisError(
                f"arenas have the shape {np.shape(arenas)}; it must be that of the walls, "
                f"{self.walls.shape}"
            )
        if not 0 <= max_velocity <= GENAGENT_VELOCITY_MAX:
            raise MetropolisError(
                f"the velocity is {max_velocity:g}; genagent walks 0 to {GENAGENT_VELOCITY_MAX} "
                "tiles a step"
            )
        self.arenas = np.ascontiguousarray(arenas, dtype=np.int32)
        self._width: int = self.walls.shape[1]
        self._arena_of = array("i", self.arenas.tobytes())
        self._is_wall: bytes = self.walls.tobytes()
        self.max_velocity = max_velocity
        self._to_zone = lru_cache(maxsize=256)(
            lambda tile, radius: self._walks(self._zone(tile, radius), horizon)
        )
        self._near_zone = lru_cache(maxsize=2048)(
            lambda tile, radius: self._walks(self._zone(tile, radius), NEAR_STEPS)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return GenAgent, (self.walls, self.arenas, self.max_velocity, self.horizon)

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`."""
        dx, dy = abs(p[0] - q[0]) - radius, abs(p[1] - q[1]) - radius
        if radius < 0 or (dx if dx > 0 else 0) + (dy if dy > 0 else 0) > reach:
            return False
        if math.isinf(radius) or reach >= self.horizon + 1:
            return True
        # Without a walk: q is in the zone, or at most one step from it. Most queries are such.
        if radius == 0 and reach < 2:
            return self._is_free(_tile(p)) and self._is_free(_tile(q))
        if dx <= 0 and dy <= 0 and self._arena(_tile(p)) == self._arena(_tile(q)):
            return self._is_free(_tile(q))
        walks = self._near_zone if reach <= NEAR_STEPS else self._to_zone
        return walks(_tile(p), math.floor(radius)).get(_tile(q), math.inf) <= reach

    def perceives(self, p: Position, q: Position, radius: float) -> bool:
        """See `Metric.perceives`."""
        # As `CHEBYSHEV.within`, in half its time: this runs for every pair of neighbours.
        if abs(p[0] - q[0]) > radius or abs(p[1] - q[1]) > radius:
            return False
        arena_of, width = self._arena_of, self._width
        there = arena_of[int(q[1]) * width + int(q[0])]
        return arena_of[int(p[1]) * width + int(p[0])] == there

    def _arena(self, tile: Tile) -> int:
        return self._arena_of[tile[1] * self._width + tile[0]]

    def _is_free(self, tile: Tile) -> bool:
        return not self._is_wall[tile[1] * self._width + tile[0]]

    def _zone(self, tile: Tile, radius: int) -> list[Tile]:
        velocity = math.floor(self.max_velocity)
        nearby = self._walks([tile], 2 * velocity)
        arenas = {self._arena(t) for t, steps in nearby.items() if steps <= velocity}
        own = [
            t for t in self._square(*tile, radius + velocity) if self._arena(t) == self._arena(tile)
        ]
        beside_own = self._walks(own, velocity)
        return [
            t
            for t in self._square(*tile, radius)
            if self._arena(t) in arenas or t in nearby or t in beside_own
        ]


@dataclass(slots=True)
class _Field:
    """A breadth-first search from a node, extended on demand."""

    hops: dict[int, int]
    edge: list[int]
    """The nodes in `hops` with the largest distance, from which the search continues."""
    radius: float = 0
    """All nodes up to this distance are in `hops`."""


class Hops:
    """Distance in a graph, for perception and movement alike; positions are (node, 0)."""

    name = "hops"
    uniform = True

    def __init__(self, neighbours: Sequence[Sequence[int]]) -> None:
        """`neighbours[i]` are the neighbours of node i; list every edge at both ends."""
        sets = [set(of) for of in neighbours]
        for node, of in enumerate(sets):
            for other in of:
                if other not in range(len(sets)) or node not in sets[other]:
                    raise MetropolisError(
                        f"node {node} lists {other} as a neighbour, but not the other way round; "
                        "list every edge at both ends"
                    )
        self.neighbours = tuple(tuple(sorted(of)) for of in sets)
        self._fields = lru_cache(maxsize=4096)(lambda node: _Field({node: 0}, [node]))
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Hops, (self.neighbours,)

    def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
        """See `Metric.within`; symmetric in p and q."""
        far = radius + reach
        return self._hops(int(p[0]), far).get(int(q[0]), math.inf) <= far

    def perceives(self, p: Position, q: Position, radius: float) -> bool:
        """See `Metric.perceives`."""
        return self.within(p, q, radius, 0)

    def flaw(self, p: Position) -> str | None:
        """See `Metric.flaw`."""
        if 0 <= p[0] < len(self.neighbours) and p[0] == int(p[0]) and p[1] == 0:
            return None
        return f"it must be (node, 0) with a node below {len(self.neighbours)}"

    def ball(self, node: int, radius: float) -> list[int]:
        """The nodes at most `radius` hops from `node`."""
        return [other for other, hops in self._hops(node, radius).items() if hops <= radius]

    def _hops(self, node: int, radius: float) -> dict[int, int]:
        """The hops to all nodes within `radius`, and possibly to others."""
        field = self._fields(node)
        while field.radius < radius:
            with self._lock:  # runs in several threads may share the metric
                hops = field.hops
                beyond = [i for j in field.edge for i in self.neighbours[j] if i not in hops]
                steps = hops[field.edge[0]] + 1
                field.hops = hops | dict.fromkeys(beyond, steps)  # others may iterate over the old
                field.edge = list(dict.fromkeys(beyond)) or field.edge
                field.radius = steps if beyond else math.inf
        return field.hops


def distance(metric: Metric, p: Position, q: Position, *, walk: bool = False) -> float:
    """The smallest radius with which an agent at p perceives q; an integer outside the plane.

    With `walk`, the length of its walk to q. Infinite beyond a million, as between arenas.
    """
    if isinstance(metric, PlaneMetric):
        return metric.distance(abs(p[0] - q[0]), abs(p[1] - q[1]))
    holds = partial(metric.within, p, q, 0) if walk else partial(metric.perceives, p, q)
    if holds(0):
        return 0.0
    beyond, within = 0, 1
    while not holds(within):
        beyond, within = within, 2 * within
        if within > 1 << 20:
            return math.inf
    while within - beyond > 1:
        middle = (beyond + within) // 2
        beyond, within = (beyond, middle) if holds(middle) else (middle, within)
    return float(within)


PLANE_METRICS = {metric.name: metric for metric in (CHEBYSHEV, EUCLIDEAN, MANHATTAN)}
METRICS = (*PLANE_METRICS, Geodesic.name, GenAgent.name, Hops.name)


def metric_named(
    name: str,
    grid: GridMap | None = None,
    max_velocity: float = 1,
    graph: Sequence[Sequence[int]] | None = None,
) -> Metric:
    """The metric `name`; geodesic and genagent need the map, hops the graph.

    Raises MetropolisError for an unknown name, for a metric without its map or graph, and for a
    graph with a metric other than hops.
    """
    check_name("metric", name, METRICS)
    if name == Hops.name:
        if graph is None:
            raise MetropolisError(
                "the metric hops needs a graph, and the trace has none; a run of a world whose "
                "metric is hops writes a trace with one"
            )
        return Hops(graph)
    if graph is not None:
        raise MetropolisError(f"the trace has a graph; its metric should be hops, not {name}")
    if name in PLANE_METRICS:
        return PLANE_METRICS[name]
    if grid is None:
        raise MetropolisError(
            f"the metric {name} needs a map, and the trace has none; "
            "`metropolis trace import --map` adds one"
        )
    if name == Geodesic.name:
        return Geodesic(grid.walls)
    return GenAgent(grid.walls, grid.arenas, max_velocity)
