"""The clusters of a step: the agents that are resolved together, in every mode.

Two agents at the same step are in one cluster when they are within `radius` of each other (the
larger of twice the velocity and the joint radius), directly or transitively. This depends only on
the agents' positions, so `World.resolve` receives the same clusters in every mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import isinf

from metropolis.rules.metrics import Metric
from metropolis.types import Position
from metropolis.world.cells import Cell, Cells

FEW = 6
"""Up to this number of agents, all pairs are compared."""


def clusters(metric: Metric, radius: float, positions: Sequence[Position]) -> list[tuple[int, ...]]:
    """The clusters as ascending indices into `positions`, ordered by their smallest index.

    Two agents are coupled iff ``metric.within(p, q, radius, 0)``, as in the controllers. This may
    hold where `perceives` does not: two agents on opposite sides of a door write the same tile.
    """
    if isinf(radius):
        return [tuple(range(len(positions)))] if positions else []
    if len(positions) <= FEW:
        return _clusters_of_few(metric, radius, positions)
    grid = Cells(metric, radius)
    cells = [grid.of(position) for position in positions]
    waiting: dict[Cell, set[int]] = defaultdict(set)
    for index, cell in enumerate(cells):
        waiting[cell].add(index)
    found = []
    for first, own in enumerate(cells):
        if first not in waiting[own]:
            continue
        waiting[own].remove(first)
        cluster = [first]
        for member in cluster:  # the list grows during the iteration
            here = positions[member]
            for cell in grid.around(cells[member]):
                reached = [
                    other
                    for other in waiting.get(cell, ())
                    if metric.within(here, positions[other], radius, 0)
                ]
                cluster += reached
                if reached:
                    waiting[cell].difference_update(reached)
        found.append(tuple(sorted(cluster)))
    return found


def _clusters_of_few(
    metric: Metric, radius: float, positions: Sequence[Position]
) -> list[tuple[int, ...]]:
    within, left, found = metric.within, [*range(len(positions))], []
    while left:
        cluster = [left.pop(0)]
        for member in cluster:  # the list grows during the iteration
            here = positions[member]
            reached = [other for other in left if within(here, positions[other], radius, 0)]
            if reached:
                cluster += reached
                left = [other for other in left if other not in reached]
        found.append(tuple(sorted(cluster)))
    return found
