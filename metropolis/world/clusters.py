"""The clusters of a step: the agents that are resolved together, in every mode.

Two agents at the same step are in one cluster when they are within `radius` of each other (the
larger of twice the velocity and the joint radius), directly or transitively. This depends only on
the agents' positions, so `World.resolve` receives the same clusters in every mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import floor, isinf

from metropolis.rules.metrics import Hops, Metric
from metropolis.types import Position
from metropolis.world.cells import Cell, neighbours

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
    cell_of, cells_near = _graph(metric, radius) if isinstance(metric, Hops) else _plane(radius)
    waiting: dict[Cell, set[int]] = defaultdict(set)
    for index, position in enumerate(positions):
        waiting[cell_of(position)].add(index)
    found = []
    for first, position in enumerate(positions):
        if first not in waiting[cell_of(position)]:
            continue
        waiting[cell_of(position)].remove(first)
        cluster = [first]
        for member in cluster:  # the list grows during the iteration
            here = positions[member]
            for cell in cells_near(cell_of(here)):
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


_Cells = tuple[Callable[[Position], Cell], Callable[[Cell], Iterable[Cell]]]
"""The cell of a position; the cells that may contain an agent within the radius of a cell."""


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


def _plane(radius: float) -> _Cells:
    # A thousandth more than the radius: rounding never puts two coupled agents two cells apart.
    side = 1.001 * max(radius, 1.0)

    def cell_of(position: Position) -> Cell:
        return floor(position[0] / side), floor(position[1] / side)

    return cell_of, neighbours


def _graph(metric: Hops, radius: float) -> _Cells:
    def cell_of(position: Position) -> Cell:
        return int(position[0]), 0

    def cells_near(cell: Cell) -> Iterable[Cell]:
        return [(node, 0) for node in metric.ball(cell[0], radius)]

    return cell_of, cells_near
