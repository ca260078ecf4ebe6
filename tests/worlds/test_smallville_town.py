"""What residents know of the town: ways, places, and who they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.maps.map import GridMap
from metropolis.maps.tiling import side_by_side
from metropolis.maps.town import alderbrook
from metropolis.types import MetropolisError
from metropolis.worlds.smallville import make
from metropolis.worlds.smallville.geography import MOVES, Atlas
from metropolis.worlds.smallville.planning import TO_BED
from metropolis.worlds.smallville.profile import read_profiles
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.settings import PRESETS, settings_of, table_of
from metropolis.worlds.smallville.state import Activity, Talk

RESIDENT = """
[[resident]]
name = "Ann Ash"
age = 40
traits = "kind"
occupation = "baker"
background = "Ann bakes."
habits = "gets up at six"
goal = "Ann wants to bake."
home = "Ash house"
room = "bedroom"
at = [2, 2]
"""


def grid_of(walls: list[list[bool]]) -> GridMap:
    none = np.zeros((len(walls), len(walls[0])), np.int32)
    return GridMap("town", np.array(walls), none, ("",), none, ("",))


@st.composite
def walks(draw: st.DrawFn) -> tuple[GridMap, tuple[int, int], tuple[int, int]]:
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    row = st.lists(st.booleans(), min_size=width, max_size=width)
    walls = draw(st.lists(row, min_size=height, max_size=height))
    tile = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1))
    here, there = draw(tile), draw(tile)
    for x, y in (here, there):
        walls[y][x] = False
    return grid_of(walls), here, there


@settings(max_examples=200, deadline=None)
@given(walks(), st.integers(0, 300))
def test_the_shortest_way(
    case: tuple[GridMap, tuple[int, int], tuple[int, int]], left: int
) -> None:
    grid, (x, y), (goal_x, goal_y) = case
    path = grid.walk((x, y), (goal_x, goal_y))
    atlas = Atlas(grid, left)
    here, there = (x + left, y), (goal_x + left, goal_y)
    walk = atlas.walk(here, there)
    assert len(walk) == (0 if path is None else len(path) + 1)
    assert not walk or (walk[0], walk[-1]) == (here, there)
    for _ in path or ():
        dx, dy = MOVES[atlas.toward(here, there)]
        here = here[0] + dx, here[1] + dy
        assert not grid.walls[here[1], here[0] - left]
    assert path is None or here == there
    assert atlas.toward(there, there) == "stay"


def test_every_object_can_be_reached() -> None:
    atlas = Atlas(alderbrook().map)
    door = alderbrook().beds[0][1]
    tiles = [
        tile
        for arenas in atlas.places.values()
        for things in arenas.values()
        for tiles in things.values()
        for tile in tiles
    ]
    assert len(tiles) > 200
    assert all(atlas.walk(door, tile) for tile in tiles)
    assert atlas.arena(door) == "Willow Lodge: room 1"


def test_towns_side_by_side_are_the_same_but_for_their_names() -> None:
    town = alderbrook().map
    three = side_by_side(town, 3)
    assert three.width == 3 * town.width
    for k in range(3):
        part = slice(k * town.width, (k + 1) * town.width)
        assert (three.walls[:, part] == town.walls).all()
        named = np.array(three.arena_names)[three.arenas[:, part]]
        own = np.array(["", *(f"{name} #{k + 1}" for name in town.arena_names[1:])])
        assert (named == own[town.arenas]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RESIDENT + RESIDENT, "two residents are named 'Ann Ash'"),
        (RESIDENT.replace("age = 40", ""), "age"),
        (RESIDENT.replace("age = 40", 'age = "old"'), "age"),
        (RESIDENT + 'mood = "glad"', "mood"),
        ("[[resident]", "residents.toml"),
        ("weather = 1" + RESIDENT, "weather"),
        ("settings = 1" + RESIDENT, "a table"),
        ('[settings]\npreset = "code-2"' + RESIDENT, "paper or code-1.0"),
        (RESIDENT + "[resident.settings]\nvision = 3", "vision_tiles"),
        (RESIDENT + "[resident.settings]\nretention = 0", "retention"),
    ],
)
def test_a_bad_list_of_residents_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "residents.toml"
    path.write_text(text)
    with pytest.raises(MetropolisError, match=said) as refused:
        read_profiles(path)
    assert str(path) in str(refused.value)


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match="cannot be read"):
        read_profiles(tmp_path / "residents.toml")


def test_settings_of_all_and_of_one(tmp_path: Path) -> None:
    path = tmp_path / "residents.toml"
    own = '[resident.settings]\nvision_tiles = 8\npreset = "paper"'
    other = RESIDENT.replace("Ann", "Ben")
    path.write_text(f'[settings]\npreset = "code-1.0"\nretention = 8\n{RESIDENT}{other}{own}')
    ann, ben = (profile.settings for profile in read_profiles(path))
    assert ann == replace(PRESETS["code-1.0"], retention=8)
    assert ben == replace(PRESETS["paper"], retention=8, vision_tiles=8)


@given(st.sampled_from(sorted(PRESETS)), st.integers(1, 9), st.booleans(), st.floats(0, 9))
def test_settings_as_a_table(preset: str, retention: int, rerates: bool, weight: float) -> None:
    own = replace(PRESETS[preset], retention=retention, rerates=rerates, recency_weight=weight)
    assert settings_of(table_of(own)) == own
    assert table_of(PRESETS[preset]) in ({}, {"preset": preset})


def test_what_a_resident_does_is_shown_not_its_plan_alone() -> None:
    resident = make().agents[0]
    assert isinstance(resident, Resident)

    def present() -> dict[str, object]:
        return {str(row["what"]): row[""] for row in resident.tables()["present"]}

    first = present()
    assert first["is"] == "sleeping"
    assert not {"until", "bound for", "interrupted"} & first.keys()
    resident.activity = Activity("reading", "Mill Green: park", "bench", goal=(7, 9), until_s=36000)
    resident.abed = False
    reading = present()
    assert reading["is"] == "reading"
    assert reading["bound for"] == "Mill Green: park: bench [7, 9]"
    assert "interrupted" not in reading
    resident.talk = Talk("Celia Marsh", "rolls", (), 35000, 0, (8, 8))
    talking = present()
    assert talking["is"] == "talking with Celia Marsh about rolls"
    assert (talking["interrupted"], talking["bound for"]) == ("reading", "[8, 8]")
    assert talking["until"] == "Mon 13 Feb 09:43"
    resident.talk = None
    resident.activity = Activity(TO_BED, "Willow Lodge: room 1", "bed", asleep=True)
    assert present()["is"] == "going to bed"
    resident.abed = True
    assert present()["is"] == "sleeping"
