"""Agents exactly at the edge of a radius, wherever the cells of the native index end."""

from __future__ import annotations

import numpy as np
import pytest

from metropolis.controller.native import NativeController
from metropolis.controller.reference import ReferenceController
from metropolis.rules.metrics import CHEBYSHEV, GenAgent
from metropolis.rules.rules import Rule, conservative
from metropolis.types import Commit, Dispatch, MetropolisError, Position

STEPS = 40


@pytest.mark.parametrize("toward", [-1, 1])
@pytest.mark.parametrize("breadth", range(20, 120))
def test_a_caravan_that_leaves_the_first_bounding_box_stays_together(
    breadth: int, toward: int
) -> None:
    rule = conservative(4, 1)
    apart = int(rule.couple_radius)
    # Three in a row, of which only neighbours are coupled; a fourth spans the box of the cells.
    at: list[Position] = [(apart, 16), (2 * apart, 18), (0, 18), (breadth, 48)]
    at = [(toward * -x, y) for x, y in at]
    start = (rule, CHEBYSHEV, 1, at, STEPS)
    native, reference = NativeController.of_rule(*start), ReferenceController(*start)
    assert native.start() == reference.start()
    for step in range(STEPS - 1):
        at[:3] = [(x + toward, y) for x, y in at[:3]]
        commits = [Commit((0, 1, 2), tuple(at[:3]))]
        if step % 2:
            commits.append(Commit((3,), (at[3],)))
        commands = native.handle(commits)
        assert commands == reference.handle(commits)
        native.validate()


def test_a_radius_wider_than_the_map_is_the_map() -> None:
    walls = np.zeros((3, 9), dtype=bool)
    walls[:, 4] = True  # two rooms without a door
    arenas = np.repeat([[0] * 5 + [1] * 4], 3, axis=0)
    metric = GenAgent(walls, arenas, 1)
    at = [(0, 0), (3, 2), (8, 1)]
    for radius in (12, 2**20, 2**21 + 1, 2**40):
        start = (Rule(radius, radius), metric, 1, at, 3)
        expected = [Dispatch(0, (0, 1)), Dispatch(0, (2,))]
        assert NativeController.of_rule(*start).start() == expected, radius


def test_genagent_walks_no_faster_than_walks_are_counted() -> None:
    open_map = np.zeros((3, 3), dtype=bool)
    with pytest.raises(MetropolisError, match="velocity is 101"):
        GenAgent(open_map, open_map.astype(int), 101)
