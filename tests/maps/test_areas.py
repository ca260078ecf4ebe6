"""Areas against brute force over their tiles."""

import re
from math import hypot
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.maps.areas import Area, Areas
from metropolis.maps.map import GridMap
from metropolis.maps.town import alderbrook
from metropolis.types import MetropolisError, Position


def random_grid(random: Random) -> GridMap:
    width, height = random.randint(1, 12), random.randint(1, 12)

    def layer(names: int) -> np.ndarray:
        return np.array(
            [[max(0, random.randint(-2, names)) for _ in range(width)] for _ in range(height)],
            np.int32,
        )

    return GridMap(
        "random",
        np.zeros((height, width), bool),
        layer(3),
        ("", "a: hall", "a: room", "b: yard"),
        layer(2),
        ("", "bed", "stove"),
    )


def distance_to(tiles: tuple, position: Position) -> float:
    """From a position to the nearest of some tiles, squares of side 1."""
    return min(
        hypot(*(max(abs(p - t) - 0.5, 0) for p, t in zip(position, tile, strict=True)))
        for tile in tiles
    )


@given(st.integers(0, 2**32), st.sampled_from([0, 0.3, 1, 2.5, 40]))
def test_areas_are_their_tiles(seed: int, reach: float) -> None:
    random = Random(seed)
    grid = random_grid(random)
    areas = Areas(grid)
    place = (random.uniform(-2, grid.width + 2), random.uniform(-2, grid.height + 2))
    if random.random() < 0.5:
        place = (random.randrange(grid.width), random.randrange(grid.height))
    for arena in areas.arenas.values():
        assert arena.geometry.area == pytest.approx(len(arena.tiles))
        number = grid.arena_names.index(arena.name)
        assert set(arena.tiles) == {(x, y) for y, x in np.argwhere(grid.arenas == number)}
        assert arena.distance(place) == pytest.approx(distance_to(arena.tiles, place))
    every = list(areas.arenas.values())
    assert_nearest_first(areas.arenas_within(place, reach), every, place, reach)
    if areas.objects:
        assert_nearest_first(areas.objects_within(place, reach), areas.objects, place, reach)
        nearest = areas.nearest_object(place)
        assert distance_to(nearest.tiles, place) == pytest.approx(
            min(distance_to(other.tiles, place) for other in areas.objects)
        )
        named = [other for other in areas.objects if other.name == nearest.name]
        assert areas.nearest_object(place, nearest.name) == nearest
        assert_nearest_first(areas.objects_within(place, reach, nearest.name), named, place, reach)


def assert_nearest_first(found: list[Area], areas: list, place: Position, reach: float) -> None:
    expected = [area for area in areas if area.distance(place) <= reach]
    assert sorted(area.tiles for area in found) == sorted(area.tiles for area in expected)
    far = [area.distance(place) for area in found]
    assert far == sorted(far)


@given(st.integers(0, 2**32))
def test_objects_are_touching_tiles_of_a_name(seed: int) -> None:
    grid = random_grid(Random(seed))
    objects = Areas(grid).objects
    tiles = [tile for each in objects for tile in each.tiles]
    assert len(tiles) == len(set(tiles)) == np.count_nonzero(grid.objects)
    for each in objects:
        assert {grid.object_names[grid.objects[y, x]] for x, y in each.tiles} == {each.name}
        assert each.geometry.geom_type == "Polygon", "its tiles are joined by their sides"
        for other in objects:
            if other is not each and other.name == each.name:
                assert not any(
                    abs(x - u) + abs(y - v) == 1 for x, y in each.tiles for u, v in other.tiles
                )


def test_the_arena_at_a_position() -> None:
    random = Random(3)
    grid = random_grid(random)
    areas = Areas(grid)
    for y in range(grid.height):
        for x in range(grid.width):
            arena = areas.arena_at((x + 0.4, y - 0.4))
            assert (arena.name if arena else "") == grid.arena_names[grid.arenas[y, x]]
    assert areas.arena_at((-1, 0)) is areas.arena_at((0, 99)) is None


def test_a_real_town() -> None:
    areas = Areas(alderbrook().map)
    assert len(areas.arenas) > 30
    bed = areas.nearest_object((20, 20), areas.objects[0].name)
    assert bed in areas.objects
    home = areas.arena_at(bed.tiles[0])
    assert home is not None
    assert areas.arena(home.name) is home
    assert home.distance(bed.tiles[0]) == 0


def test_what_is_not_there() -> None:
    nothing = np.zeros((2, 2), np.int32)
    empty = Areas(GridMap("moor", nothing != 0, nothing, ("",), nothing, ("",)))
    assert empty.arenas_within((0, 0), 9) == []
    with pytest.raises(MetropolisError, match="the map 'moor' has no objects"):
        empty.nearest_object((0, 0))
    town = Areas(random_grid(Random(1)))
    with pytest.raises(MetropolisError, match="the map 'random' has no object 'well'; there are"):
        town.objects_within((0, 0), 1, "well")
    with pytest.raises(MetropolisError, match="the map 'random' has no arena 'c: attic'; there ar"):
        town.arena("c: attic")


def test_the_documents_example(capsys: pytest.CaptureFixture[str]) -> None:
    document = Path(__file__).parents[2] / "docs" / "worlds.md"
    (example,) = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out.strip()
