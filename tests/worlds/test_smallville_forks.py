"""Simulations of projects made from Generative Agents, which move, add and leave out things."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from metropolis import MetropolisError, make_scenario
from metropolis.worlds.smallville.resident import Resident
from tests.cli.test_world import checkout, run_import, runs_in_both_modes
from tests.worlds.test_smallville_importing import STOPPED

STORED = "environment/frontend_server/storage/base_the_ville_n25"
ASSETS = "environment/frontend_server/static_dirs/assets"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkout(tmp_path / "source")


def rewrite(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def scratch(source: Path, name: str, **fields: object) -> None:
    rewrite(next(source.rglob(f"{name}/bootstrap_memory/scratch.json")), **fields)


def meta(source: Path, **fields: object) -> None:
    path = source / STORED / "reverie" / "meta.json"
    path.parent.mkdir()
    path.write_text(json.dumps(fields))


def imported(source: Path, *words: str) -> tuple[str, list[Resident]]:
    """What the import prints, and the people; their town runs alike in both modes."""
    out = source.parent / "town"
    shutil.rmtree(out, ignore_errors=True)
    result = run_import(source, out, *words)
    assert result.exit_code == 0, result.output
    runs_in_both_modes(out, 60)
    return result.output, make_scenario(str(out)).agents


def refused(source: Path, *words: str) -> str:
    error = run_import(source, source.parent / "other town", *words).exception
    assert isinstance(error, MetropolisError)
    return str(error)


def test_folders_that_have_moved_are_found(source: Path) -> None:
    shutil.move(source / STORED, source / "stored" / "ash")
    shutil.move(source / ASSETS / "the_ville", source / "maps" / "my_town")
    output, people = imported(source, "--simulation", "ash")
    assert len(people) == 2
    assert people[0].profile.memories == ("You know Ben Birch", "You like tea")
    assert "imported my_town" in output
    for name in ("ash/no", "oak"):
        assert f"has no simulation named '{name}'" in refused(source, "--simulation", name)
    shutil.copytree(source / "stored" / "ash", source / "copy" / "ash")
    said = refused(source, "--simulation", "ash")
    assert "several simulations named 'ash'" in said
    assert "'copy/ash', 'stored/ash'" in said
    imported(source, "--simulation", "copy/ash")
    shutil.copytree(source / "maps" / "my_town", source / "maps" / "your_town")
    chosen = ("--simulation", "copy/ash")
    assert "name one with --map" in refused(source, *chosen)
    imported(source, *chosen, "--map", str(source / "maps" / "your_town" / "matrix"))


def test_a_compressed_simulation_has_no_start_tiles(source: Path) -> None:
    """Its people are where they stopped."""
    server = source / "environment" / "frontend_server"
    folder = server / "compressed_storage" / "day"
    shutil.move(source / STORED, folder)
    shutil.rmtree(folder / "environment")
    (folder / "meta.json").write_text(json.dumps({"curr_time": "February 14, 2023, 18:00:00"}))
    for name, tile in (("Ann Ash", [8, 5]), ("Ben Birch", [2, 2])):
        scratch(source, name, **STOPPED | {"curr_tile": tile})
    output, people = imported(source, "--simulation", "day")
    assert "from 2023-02-14 18:00 on" in output
    assert [of.profile.at for of in people] == [(8, 5), (2, 2)]
    scratch(source, "Ann Ash", curr_tile=None, curr_time=None)
    assert "0.json: has no tile of 'Ann Ash', and" in refused(source, "--simulation", "day")


def test_people_without_a_folder_are_named(source: Path) -> None:
    meta(source, persona_names=["Ann Ash", "Cy Cole"])
    assert "the field persona_names holds 'Cy Cole'; " in refused(source)


def test_files_may_begin_with_a_byte_order_mark(source: Path) -> None:
    for path in (source / STORED).rglob("*.json"):
        path.write_text(path.read_text(), "utf-8-sig")
    imported(source)


def test_first_memories_of_another_file(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("Name,Whisper\nBen Birch,You like chess\n")
    _, (ann, ben) = imported(source, "--history", str(path))
    assert (ann.profile.memories, ben.profile.memories) == ((), ("You like chess",))


@pytest.mark.parametrize(
    ("living_area", "room"),
    [
        ("the town:Ash house: bedroom ", "bedroom"),
        ("the town:Ash house", "bedroom"),
        ("the town:Ash house:attic", "bedroom"),
        ("the town:nowhere:at all", "bedroom"),
        ("the town:Corner Cafe", "cafe"),
        ("", "bedroom"),
    ],
)
def test_a_home_that_the_map_does_not_have(source: Path, living_area: str, room: str) -> None:
    scratch(source, "Ben Birch", living_area=living_area)
    output, (_, ben) = imported(source)
    assert ben.profile.room == room
    known = living_area.endswith(" ")
    assert ("1 of the people live in another arena" in output) is not known
    assert (f"Ben Birch ({ben.profile.home}: {room})" in output) is not known


def test_who_begins_outside_of_all_arenas_lives_in_the_nearest(source: Path) -> None:
    scratch(source, "Ben Birch", living_area="the town:nowhere:at all")
    path = next(source.rglob("arena_maze.csv"))
    ids = path.read_text().split(", ")
    path.write_text(", ".join("0" if at % 12 < 6 else of for at, of in enumerate(ids)))
    _, (_, ben) = imported(source)
    assert ben.profile.home == "Corner Cafe"
    path.write_text(", ".join(["0"] * len(ids)))
    assert "the map has no arenas" in refused(source)


def test_missing_texts_are_empty_and_reported(source: Path) -> None:
    scratch(source, "Ben Birch", learned=None, currently=None, living_area=None)
    output, (_, ben) = imported(source)
    assert (ben.profile.background, ben.profile.goal, ben.profile.room) == ("", "", "bedroom")
    assert "Ben Birch (learned, currently, living_area)" in output


def test_who_stands_in_a_wall_begins_beside_it(source: Path) -> None:
    rewrite(source / STORED / "environment" / "0.json", **{"Ben Birch": {"x": 6, "y": 2}})
    meta(source, curr_time="February 14, 2023, 18:00:00")
    scratch(source, "Ann Ash", **STOPPED | {"curr_tile": [0, 0], "planned_path": [[0, 5]]})
    output, (ann, ben) = imported(source)
    assert ben.profile.at == (7, 2), "the nearest tile of the same room"
    assert ann.activity is not None
    assert ann.activity.goal == (1, 5)
    assert "2 of the people begin near the tile of the files" in output
    assert "Ann Ash ((1, 1)), Ben Birch ((7, 2))" in output


def test_numbers_as_texts_and_longer_entries(source: Path) -> None:
    meta(source, curr_time="February 14, 2023, 18:00:00")
    hours = [["sleeping", "360", 0], ["baking", 1080.0, 2]]
    scratch(source, "Ann Ash", **STOPPED | {"age": "41", "f_daily_schedule_hourly_org": hours})
    _, (ann, _) = imported(source)
    assert ann.profile.age == 41
    assert [of.end_s // 3600 for of in ann.day.hours] == [6, 24]


@pytest.mark.parametrize(
    ("learned", "occupation"),
    [
        ("Ben Birch is a baker.", "baker"),
        ("Ben likes bread. He is an amateur sailor who sings.", "amateur sailor"),
        ("Ben thinks that tea is a drug. Ann is a baker.", "resident"),
        ("Ben is Ann's son.\nBen is a pupil at school.", "pupil"),
    ],
)
def test_occupations(source: Path, learned: str, occupation: str) -> None:
    scratch(source, "Ben Birch", learned=learned)
    _, (_, ben) = imported(source)
    assert ben.profile.occupation == occupation


@pytest.mark.parametrize(
    ("what", "asleep"),
    [
        ("睡覺", True),
        ("睡前 (睡觉)", True),
        ("durmiendo", True),
        ("睡前散步", False),
        ("dormitory", False),
    ],
)
def test_plans_in_other_languages(source: Path, what: str, asleep: bool) -> None:
    meta(source, curr_time="February 14, 2023, 18:00:00")
    scratch(source, "Ann Ash", **STOPPED | {"act_description": what})
    _, (ann, _) = imported(source)
    assert ann.activity.asleep is asleep


def test_a_simulation_that_renames_places(source: Path) -> None:
    meta(
        source,
        block_remaps={
            "sector": {"Ash house": "Fire station"},
            "arena": {"bedroom": "hall"},
            "game_object": {"bed": "fire engine"},
        },
    )
    for name in ("Ann Ash", "Ben Birch"):
        scratch(source, name, living_area="the town:Fire station:hall")
    output, (ann, _) = imported(source)
    assert "another arena" not in output
    assert (ann.profile.home, ann.profile.room) == ("Fire station", "hall")
    grid = json.loads((source.parent / "town" / "town.json").read_text())
    assert grid["object_names"] == ["", "cafe customer seating", "fire engine"]
    rewrite(source / STORED / "reverie" / "meta.json", block_remaps={"arena": {"bedroom": 7}})
    assert "the field block_remaps is" in refused(source)


def test_blocks_without_a_name_are_empty(source: Path) -> None:
    path = next(source.rglob("game_object_blocks.csv"))
    path.write_text(path.read_text().splitlines()[0])
    output, _ = imported(source)
    assert "does not name the id 22 of maze/game_object_maze.csv, which then means" in output
    grid = json.loads((source.parent / "town" / "town.json").read_text())
    assert grid["object_names"] == ["", "bed"]


@pytest.mark.parametrize("number", [", 0", ",10"])
def test_objects_may_have_a_number(source: Path, number: str) -> None:
    path = next(source.rglob("game_object_blocks.csv"))
    path.write_text("".join(f"{line}{number}\n" for line in path.read_text().splitlines()))
    imported(source)
    grid = json.loads((source.parent / "town" / "town.json").read_text())
    assert grid["object_names"] == ["", "bed", "cafe customer seating"]
