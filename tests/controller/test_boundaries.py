"""Agents exactly at the edge of a radius, wherever the cells of the native index happen to end."""

from __future__ import annotations

import pytest

from metropolis.controller.native import NativeController
from metropolis.controller.reference import ReferenceController
from metropolis.rules.metrics import CHEBYSHEV
from metropolis.rules.rules import conservative
from metropolis.types import Commit, Position

STEPS = 40


@pytest.mark.parametrize("toward", [-1, 1])
@pytest.mark.parametrize("breadth", range(20, 120))
def test_a_caravan_that_leaves_the_first_bounding_box_stays_together(
    breadth: int, toward: int
) -> None:
    rule = conservative(4, 1)
    apart = int(rule.couple_radius)
    # Three in a row, of whom only neighbours are coupled; a stranger spans the box of the cells.
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
