"""Metrics against independent answers, and against their twins in C++."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import lil_array
from scipy.sparse.csgraph import dijkstra

from metropolis.controller.native import core_metric
from metropolis.rules.metrics import (
    CHEBYSHEV,
    EUCLIDEAN,
    MANHATTAN,
    PLANE_METRICS,
    Geodesic,
    Hops,
    metric_named,
)
from metropolis.types import MetropolisError
from metropolis.world.map import GridMap

coordinates = st.floats(-50, 50) | st.integers(-9, 9).map(float)
places = st.tuples(coordinates, coordinates)
SEEDS = st.integers(0, 2**40)


def walled(seed: int) -> Geodesic:
    random = Random(seed)
    width, height = random.randint(1, 14), random.randint(1, 14)
    share = random.choice([0, 0.2, 0.4])
    walls = np.array([[random.random() < share for _ in range(width)] for _ in range(height)])
    return Geodesic(walls, horizon=random.choice([1, 3, 30, 250]))


def floor_of(metric: Geodesic) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for y, x in np.argwhere(~metric.walls)]


def shortest(nodes: list, edges: list[tuple[int, int]]) -> np.ndarray:
    graph = lil_array((len(nodes), len(nodes)))
    for i, j in edges:
        graph[i, j] = 1
    return dijkstra(graph.tocsr(), directed=False)


@given(places, places, st.floats(0, 9), st.floats(0, 9))
def test_plane_metrics(p, q, radius, reach) -> None:
    dx, dy = abs(p[0] - q[0]), abs(p[1] - q[1])
    euclidean = math.sqrt(dx**2 + dy**2)
    distances = {"chebyshev": max(dx, dy), "euclidean": euclidean, "manhattan": dx + dy}
    for metric in (CHEBYSHEV, EUCLIDEAN, MANHATTAN):
        expected = distances[metric.name] <= radius + reach
        assert metric.within(p, q, radius, reach) == expected
        assert core_metric(metric).within(p, q, radius, reach) == expected


@settings(deadline=None)
@given(SEEDS)
def test_geodesic_is_the_walk_to_the_nearest_perceived_tile(seed: int) -> None:
    random = Random(seed)
    metric = walled(seed)
    tiles = floor_of(metric)
    if not tiles:
        return
    at = {tile: i for i, tile in enumerate(tiles)}
    edges = [(at[x, y], at[t]) for x, y in tiles for t in ((x + 1, y), (x, y + 1)) if t in at]
    walks = shortest(tiles, edges)
    twin = core_metric(metric)
    for _ in range(60):
        p, q = random.choice(tiles), random.choice(tiles)
        radius, reach = random.choice([0, 1, 2, 2.5, 4]), random.choice([0, 1, 2, 3, 5, 8, 20, 300])
        square = [t for t in tiles if CHEBYSHEV.within(p, t, radius, 0)]
        walk = min(walks[at[q], at[t]] for t in square)
        excess = sum(max(0, abs(p[i] - q[i]) - radius) for i in (0, 1))
        if walk > metric.horizon:
            assert max(metric.horizon + 1, excess) <= walk, "a bound must not over-estimate"
            walk = max(metric.horizon + 1, excess)
        assert metric.within(p, q, radius, reach) == (walk <= reach), (p, q, radius, reach)
        assert twin.within(p, q, radius, reach) == (walk <= reach), (p, q, radius, reach)


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


@pytest.mark.parametrize("metric", [*PLANE_METRICS.values(), walled(1), Hops([[1], [0], []])])
def test_infinite_radii_mean_everybody_and_nobody(metric) -> None:
    places = floor_of(metric) if metric.name == "geodesic" else [(0, 0), (1, 0), (2, 0)]
    for p in places:
        for twin in (metric, core_metric(metric)):
            assert twin.within(p, places[-1], math.inf, 0)
            assert not twin.within(p, places[-1], -math.inf, 1000)


def test_a_thousand_fields_are_forgotten_and_found_again() -> None:
    """More fields than fit into memory: answers stay the same."""
    walls = np.zeros((60, 3000), dtype=bool)
    walls[:, ::7] = np.arange(60)[:, None] % 20 != 3
    metric = Geodesic(walls)
    twin = core_metric(metric)
    columns = [x for x in range(100, 2900) if x % 7]
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
    assert metric_named("euclidean") is EUCLIDEAN


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: metric_named("taxi"), "there is no metric 'taxi'; there are chebyshev, eucl"),
        (lambda: metric_named("geodesic"), "needs a map"),
        (lambda: Geodesic(np.zeros((3, 3), dtype=bool), horizon=0), "must be 1 to 250 steps"),
        (lambda: Geodesic(np.zeros(3, dtype=bool)), "needs .height, width."),
        (lambda: Hops([[1], []]), "node 0 lists 1 as a neighbour, but not the other way round"),
    ],
)
def test_what_metrics_refuse(make, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        make()
