"""Random metrics with places to stand, for property tests."""

from random import Random

import numpy as np

from metropolis.rules.metrics import PLANE_METRICS, GenAgent, Geodesic, Hops, Metric
from metropolis.types import Position

METRIC_NAMES = (*PLANE_METRICS, "geodesic", "genagent", "hops")


def random_hops(random: Random) -> Hops:
    nodes = random.randint(1, 20)
    edges = {(i, random.randrange(i)) for i in range(1, nodes) if random.random() < 0.8}
    both = edges | {(j, i) for i, j in edges}
    return Hops([[j for i, j in both if i == node] for node in range(nodes)])


def random_metric(random: Random, name: str, velocity: float = 1) -> tuple[Metric, list[Position]]:
    """A metric, and places where one can stand in it."""
    if name == "hops":
        graph = random_hops(random)
        return graph, [(float(node), 0.0) for node in range(len(graph.neighbours))]
    if name in PLANE_METRICS:
        size = random.choice([4, 30])
        places = [
            (random.uniform(-size, size), random.uniform(-size, size))
            if random.random() < 0.3
            else (float(random.randint(-size, size)), float(random.randint(-size, size)))
            for _ in range(40)
        ]
        return PLANE_METRICS[name], places
    shape = random.randint(2, 12), random.randint(2, 12)
    walls = np.array([[random.random() < 0.25 for _ in range(shape[1])] for _ in range(shape[0])])
    walls[0, 0] = False
    tiles = [(float(x), float(y)) for y, x in np.argwhere(~walls)]
    if name == "geodesic":
        return Geodesic(walls), tiles
    arenas = np.array([[random.choice([0, 1, 2]) for _ in row] for row in walls], np.int32)
    return GenAgent(walls, arenas, velocity), tiles
