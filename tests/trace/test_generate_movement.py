"""The town and the movement generated in it: legal, seeded, and like the recorded runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.maps.town import alderbrook
from metropolis.rules.metrics import CHEBYSHEV
from metropolis.trace.generate.movement import generate_movement
from metropolis.trace.generate.paths import Ways
from metropolis.trace.mining import interactions
from metropolis.trace.schema import Trace
from metropolis.trace.validate import validate
from metropolis.types import MetropolisError

SEEDS = (0, 1, 2)
TILES = [(int(x), int(y)) for y, x in np.argwhere(~alderbrook().map.walls)]


@pytest.fixture(scope="module", params=SEEDS)
def day(request: pytest.FixtureRequest) -> Trace:
    return generate_movement(seed=request.param)


def test_town_is_a_town() -> None:
    town = alderbrook()
    grid = town.map
    assert (grid.width, grid.height) == (140, 100)
    assert len(town.beds) == len(set(town.residents)) == 25
    assert grid.walls[[0, -1]].all()
    assert grid.walls[:, [0, -1]].all()
    assert not (grid.walls & (grid.arenas > 0)).any()
    assert (grid.arenas[grid.objects > 0] > 0).all()
    assert all(name.count(": ") == 1 for name in grid.arena_names[1:])
    assert set(np.unique(grid.arenas)) == set(range(len(grid.arena_names)))
    assert sum(place.staff for place in town.places) <= len(town.beds)
    for kind in ("home", "work", "meal", "errand"):
        assert town.of_kind(kind)


def test_every_tile_can_be_reached() -> None:
    ways = Ways(alderbrook().map)
    assert all(ways.distance(tile, TILES[0]) >= 0 for tile in TILES)


def test_rooms_have_doors_only() -> None:
    """Two neighbouring tiles never lie in two different arenas: there is a door between."""
    arenas = alderbrook().map.arenas
    for here, there in ((arenas[1:], arenas[:-1]), (arenas[:, 1:], arenas[:, :-1])):
        assert not ((here > 0) & (there > 0) & (here != there)).any()


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(TILES), st.sampled_from(TILES))
def test_paths_are_shortest(start: tuple[int, int], goal: tuple[int, int]) -> None:
    grid = alderbrook().map
    path = Ways(grid).path(start, goal)
    reference = grid.walk(start, goal)
    assert reference is not None
    assert len(path) == len(reference)
    for (x, y), (to_x, to_y) in zip([start, *path], path, strict=False):
        assert abs(x - to_x) + abs(y - to_y) == 1
        assert not grid.walls[to_y, to_x]
    assert not path or path[-1] == goal


def test_movement_is_legal(day: Trace) -> None:
    validate(day, "generated")
    assert np.abs(np.diff(day.positions, axis=0)).sum(axis=2).max() == 1


def test_same_seed_same_movement(day: Trace) -> None:
    seed = int(day.meta.name.rpartition("-")[2])
    np.testing.assert_array_equal(day.positions, generate_movement(seed=seed).positions)
    assert (day.positions != generate_movement(seed=seed + 1).positions).any()


def test_an_agent_does_not_depend_on_the_others_nor_on_the_hours() -> None:
    whole = generate_movement(25, (0, 24), 7).positions
    part = generate_movement(4, (6, 9), 7).positions
    np.testing.assert_array_equal(part, whole[6 * 360 : 9 * 360, :4])


def test_days_follow_each_other() -> None:
    two = generate_movement(3, (20, 34), 3)
    validate(two, "generated")
    assert (np.diff(two.positions[: 4 * 360], axis=0) != 0).any(), "awake in the evening"
    assert not np.diff(two.positions[5 * 360 : 9 * 360], axis=0).any(), "asleep 1-5 h"
    assert np.diff(two.positions[10 * 360 :], axis=0).any(), "awake the next day"


def test_statistics_are_those_of_the_recorded_runs(day: Trace) -> None:
    moving = (np.diff(day.positions, axis=0) != 0).any(axis=2)
    assert 0.15 <= moving.mean() <= 0.20  # tiles per step
    by_day = moving[6 * 360 : 23 * 360]
    assert 0.72 <= 1 - by_day.mean() <= 0.80
    assert not moving[360 : 5 * 360].any(), "all sleep"
    edges = np.diff(np.pad(moving, ((1, 1), (0, 0))).astype(int).T.ravel())
    lengths = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    assert 60 <= len(lengths) / day.agents <= 80
    assert 7 <= np.median(lengths) <= 11
    assert 50 <= np.quantile(lengths, 0.9) <= 70
    assert 1.6 <= interactions(day, CHEBYSHEV, 4).dependencies_per_agent_step <= 2.3


@pytest.mark.parametrize("agents", [0, 26])
def test_only_as_many_agents_as_beds(agents: int) -> None:
    with pytest.raises(MetropolisError, match="beds for 1 to 25 agents"):
        generate_movement(agents)


def test_hours_must_follow_each_other() -> None:
    with pytest.raises(MetropolisError, match="the end must follow the start"):
        generate_movement(hours=(13, 12))
