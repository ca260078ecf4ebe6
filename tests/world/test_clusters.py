"""Clusters against brute force."""

from math import inf, nextafter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV, PLANE_METRICS, Metric
from metropolis.types import Position
from metropolis.world.clusters import clusters
from tests.world.geometries import METRIC_NAMES, random_metric


def by_brute_force(
    metric: Metric, radius: float, positions: list[Position]
) -> list[tuple[int, ...]]:
    label = list(range(len(positions)))
    for i, p in enumerate(positions):
        for j, q in enumerate(positions[:i]):
            if metric.within(p, q, radius, 0) and label[i] != label[j]:
                old, new = max(label[i], label[j]), min(label[i], label[j])
                label = [new if of == old else of for of in label]
    return [tuple(i for i, of in enumerate(label) if of == first) for first in sorted(set(label))]


@pytest.mark.parametrize("name", METRIC_NAMES)
@given(seed=st.integers(0, 2**32), radius=st.sampled_from([-1, 0, 0.5, 1, 2, 3, 5.5, inf]))
def test_clusters_are_the_connected_components(name: str, seed: int, radius: float) -> None:
    random = Random(seed)
    metric, places = random_metric(random, name)
    positions = random.choices(places, k=random.randint(0, 30))
    assert clusters(metric, radius, positions) == by_brute_force(metric, radius, positions)


def test_rounding_does_not_part_neighbours() -> None:
    positions = [(nextafter(1, 0), 0.0), (2.0, 0.0)]
    assert CHEBYSHEV.within(*positions, 1, 0)
    assert clusters(CHEBYSHEV, 1, positions) == [(0, 1)]


@pytest.mark.parametrize("metric", PLANE_METRICS.values(), ids=PLANE_METRICS)
def test_many_agents_ask_the_metric_few_questions(metric: Metric) -> None:
    random, asked = Random(0), 0

    class Counting:
        name, uniform = metric.name, True

        def within(self, p: Position, q: Position, radius: float, reach: float) -> bool:
            nonlocal asked
            asked += 1
            return metric.within(p, q, radius, reach)

    count = 2000
    places = [(random.uniform(0, 200), random.uniform(0, 200)) for _ in range(count)]
    clusters(Counting(), 2, places)  # type: ignore[arg-type]
    assert asked < 10 * count
