"""Metrics against independent answers, and against their twins in C++."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import lil_array
from scipy.sparse.csgraph import dijkstra

from metropolis.maps.map import GridMap
from metropolis.rules.metrics import (
    CHEBYSHEV,
    EUCLIDEAN,
    MANHATTAN,
    PLANE_METRICS,
    GenAgent,
    Geodesic,
    Hops,
    metric_named,
)
from metropolis.rules.native import core_metric
from metropolis.types import MetropolisError

coordinates = st.floats(-50, 50) | st.integers(-9, 9).map(float)
places = st.tuples(coordinates, coordinates)
SEEDS = st.integers(0, 2**40)


def walls_of(random: Random) -> np.ndarray:
    width, height = random.randint(1, 14), random.randint(1, 14)
    share = random.choice([0, 0.2, 0.4])
    return np.array([[random.random() < share for _ in range(width)] for _ in range(height)])


def floor_of(walls: np.ndarray) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for y, x in np.argwhere(~walls)]


def shortest(nodes: list, edges: list[tuple[int, int]]) -> np.ndarray:
    graph = lil_array((len(nodes), len(nodes)))
    for i, j in edges:
        graph[i, j] = 1
    return dijkstra(graph.tocsr(), directed=False)


class Walks:
    """Walking distances between the tiles of a map, by scipy."""

    def __init__(self, walls: np.ndarray) -> None:
        self.tiles = floor_of(walls)
        self._at = {tile: i for i, tile in enumerate(self.tiles)}
        edges = [
            (i, self._at[t])
            for (x, y), i in self._at.items()
            for t in ((x + 1, y), (x, y + 1))
            if t in self._at
        ]
        self._steps = shortest(self.tiles, edges)

    def __call__(self, p: tuple[int, int], q: tuple[int, int]) -> float:
        return self._steps[self._at[p], self._at[q]]


def bounded(steps: float, horizon: int, unwalled: float) -> float:
    """Walks beyond the horizon are replaced by a lower bound."""
    if steps <= horizon:
        return steps
    assert max(horizon + 1, unwalled) <= steps, "a bound must not over-estimate"
    return max(horizon + 1, unwalled)


HORIZONS = [1, 3, 30, 250]
RADII = [0, 1, 2, 2.5, 4]
REACHES = [0, 1, 2, 3, 5, 8, 20, 300]


@settings(deadline=None)
@given(SEEDS)
def test_geodesic_is_the_length_of_the_walk(seed: int) -> None:
    random = Random(seed)
    walls, horizon = walls_of(random), random.choice(HORIZONS)
    walks, metric = Walks(walls), Geodesic(walls, horizon)
    twin = core_metric(metric)
    for _ in range(60 if walks.tiles else 0):
        p, q = random.choices(walks.tiles, k=2)
        radius, reach = random.choice(RADII), random.choice(REACHES)
        walk = bounded(walks(p, q), horizon, abs(p[0] - q[0]) + abs(p[1] - q[1]))
        assert metric.within(p, q, radius, reach) == (walk <= radius + reach)
        assert twin.within(p, q, radius, reach) == (walk <= radius + reach)


@settings(deadline=None)
@given(SEEDS)
def test_genagent_is_the_walk_to_where_agents_bear_on_each_other(seed: int) -> None:
    random = Random(seed)
    walls, horizon, v = walls_of(random), random.choice(HORIZONS), random.choice([1, 1, 2])
    arenas = np.array([[random.choice([0, 1, 2]) for _ in row] for row in walls])
    walks, metric = Walks(walls), GenAgent(walls, arenas, v, horizon)
    arena = {(x, y): arenas[y, x] for x, y in walks.tiles}
    twin = core_metric(metric)

    def beside(p: tuple[int, int], number: int) -> bool:
        return any(arena[u] == number and walks(p, u) <= v for u in walks.tiles)

    for _ in range(15 if walks.tiles else 0):
        p, q = random.choices(walks.tiles, k=2)
        radius, reach = random.choice(RADII), random.choice(REACHES)
        zone = [
            t
            for t in walks.tiles
            if CHEBYSHEV.within(p, t, radius, 0)
            and (beside(p, arena[t]) or beside(t, arena[p]) or walks(p, t) <= 2 * v)
        ]
        unwalled = sum(max(0, abs(p[i] - q[i]) - radius) for i in (0, 1))
        walk = bounded(min(walks(q, t) for t in zone), horizon, unwalled)
        assert metric.within(p, q, radius, reach) == (walk <= reach), (p, q, radius, reach)
        assert twin.within(p, q, radius, reach) == (walk <= reach), (p, q, radius, reach)
        assert metric.within(p, q, radius, 0) == metric.within(q, p, radius, 0)
        sees = CHEBYSHEV.within(p, q, radius, 0) and arena[p] == arena[q]
        assert metric.perceives(p, q, radius) == sees


@settings(deadline=None)
@given(SEEDS)
def test_hops_are_shortest_paths(seed: int) -> None:
    random = Random(seed)
    nodes = list(range(random.randint(1, 30)))
    edges = [(i, random.randrange(i)) for i in nodes[1:] if random.random() < 0.9]
    neighbours = [[j for i, j in edges if i == n] + [i for i, j in edges if j == n] for n in nodes]
    metric = Hops(neighbours)
    twin = core_metric(metric)
    hops = shortest(nodes, edges)
    for _ in range(60):
        i, j = random.choices(nodes, k=2)
        radius, reach = random.choices(range(6), k=2)
        expected = hops[i, j] <= radius + reach
        assert metric.within((i, 0), (j, 0), radius, reach) == expected
        assert twin.within((i, 0), (j, 0), radius, reach) == expected
        assert sorted(metric.ball(i, radius)) == [n for n in nodes if hops[i, n] <= radius]


OPEN = np.zeros((4, 5), dtype=bool)
ONE_ARENA = np.zeros((4, 5), dtype=np.int32)


@pytest.mark.parametrize(
    "metric",
    [
        *PLANE_METRICS.values(),
        Geodesic(OPEN),
        GenAgent(OPEN, ONE_ARENA, 1),
        Hops([[1], [0], []]),
    ],
)
def test_infinite_radii_mean_everybody_and_nobody(metric) -> None:
    for p in [(0, 0), (1, 0), (2, 0)]:
        for twin in (metric, core_metric(metric)):
            assert twin.within(p, (2, 0), math.inf, 0)
            assert not twin.within(p, (2, 0), -math.inf, 1000)


def test_a_thousand_fields_are_forgotten_and_found_again() -> None:
    """More fields than fit into memory: answers stay the same."""
    walls = np.zeros((60, 3000), dtype=bool)
    walls[:, ::7] = np.arange(60)[:, None] % 20 != 3
    metric = Geodesic(walls)
    twin = core_metric(metric)
    columns = [x for x in range(100, 2900) if x % 7 and (x + 20) % 7]
    first = [twin.within((x, y), (x + 20, y), 5, 60) for x in columns for y in (8, 40)]
    assert first == [twin.within((x, y), (x + 20, y), 5, 60) for x in columns for y in (8, 40)]
    sample = slice(0, None, 97)
    pairs = [(x, y) for x in columns for y in (8, 40)][sample]
    assert first[sample] == [metric.within((x, y), (x + 20, y), 5, 60) for x, y in pairs]


@pytest.mark.parametrize(
    ("metric", "place"),
    [
        (CHEBYSHEV, (math.nan, 0)),
        (EUCLIDEAN, (0, math.inf)),
        (MANHATTAN, (2e9, 0)),
        (Geodesic(np.array([[False, True]])), (1, 0)),
        (Geodesic(np.array([[False, True]])), (0, 1)),
        (Geodesic(np.array([[False, True]])), (0.5, 0)),
        (Geodesic(np.array([[False, True]])), (-1, 0)),
        (Geodesic(np.array([[False, True]])), (math.nan, 0)),
        (Hops([[1], [0]]), (2, 0)),
        (Hops([[1], [0]]), (0, 1)),
        (Hops([[1], [0]]), (0.5, 0)),
    ],
)
def test_places_nobody_can_stand_at(metric, place) -> None:
    assert metric.flaw(place)
    assert metric.flaw(place) == core_metric(metric).flaw(place)
    assert metric.flaw((0, 0)) is None
    assert core_metric(metric).flaw((0, 0)) is None


def test_metrics_by_name() -> None:
    nothing = np.zeros((2, 3), dtype=np.int32)
    grid = GridMap("plain", nothing.astype(bool), nothing, ("",), nothing, ("",))
    assert metric_named("geodesic", grid).name == "geodesic"
    assert metric_named("genagent", grid, 2).name == "genagent"
    assert metric_named("euclidean") is EUCLIDEAN
    assert metric_named("hops", graph=[[1], [0]]).within((0, 0), (1, 0), 1, 0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: metric_named("taxi"), "there is no metric 'taxi'; there are chebyshev, eucl"),
        (lambda: metric_named("genagent"), "needs a map"),
        (lambda: metric_named("hops"), "the metric hops needs a graph, and the trace has none"),
        (lambda: metric_named("manhattan", graph=[[]]), "its metric should be hops, not manhattan"),
        (lambda: GenAgent(OPEN, ONE_ARENA[:2], 1), "that of the walls, .4, 5."),
        (lambda: Geodesic(np.zeros((3, 3), dtype=bool), horizon=0), "must be 1 to 250 steps"),
        (lambda: Geodesic(np.zeros(3, dtype=bool)), "needs .height, width."),
        (lambda: Hops([[1], []]), "node 0 lists 1 as a neighbour, but not the other way round"),
    ],
)
def test_what_metrics_refuse(make, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        make()


def test_walls_and_arenas_may_be_lists() -> None:
    walls, arenas = [[0, 1, 0], [0, 0, 0]], [[1, 0, 2], [1, 1, 2]]
    for metric in (Geodesic(walls), GenAgent(walls, arenas, 1)):
        assert metric.flaw((1, 0)) == "it is a wall"
        assert metric.within((0, 0), (2, 0), 0, 4)
        assert not metric.within((0, 0), (2, 0), 0, 3)


def test_threads_may_share_a_graph() -> None:
    line = [[j for j in (i - 1, i + 1) if 0 <= j < 400] for i in range(400)]
    pairs = [(a, b, r) for r in (3, 50, 200) for a in range(0, 400, 7) for b in range(0, 400, 9)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3):
            metric = Hops(line)

            def differing(metric: Hops = metric) -> list[tuple[int, int, int]]:
                return [
                    (a, b, r)
                    for a, b, r in pairs
                    if metric.within((a, 0), (b, 0), r, 0) != (abs(a - b) <= r)
                    or len(metric.ball(a, r)) != min(a, r) + min(399 - a, r) + 1
                ]

            with ThreadPoolExecutor(4) as threads:
                assert [*threads.map(lambda _: differing(), range(4))] == [[]] * 4
    finally:
        sys.setswitchinterval(interval)
