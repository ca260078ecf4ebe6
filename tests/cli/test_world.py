"""`metropolis world import-genagent`, and runs of imported worlds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metropolis import Client, Simulation, make_scenario
from metropolis.cli.world import command
from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.result import RunResult
from metropolis.types import MetropolisError

WIDTH, HEIGHT = 12, 8
HOUSE, CAFE = 11, 12
BED, TABLE = 21, 22
PEOPLE = {"Ann Ash": (2, 2), "Ben Birch": (4, 2)}
SCRATCH = {
    "age": 40,
    "innate": "kind, curious",
    "learned": "She is a baker at Corner Cafe who likes company.",
    "currently": "Somebody is planning a party at Corner Cafe.",
    "lifestyle": "Somebody goes to bed around 11pm, awakes up around 6am.",
    "living_area": "the town:Ash house:bedroom",
}


def checkout(root: Path) -> Path:
    """Create a tiny checkout with the layout of the original."""
    server = root / "environment" / "frontend_server"
    matrix = server / "static_dirs" / "assets" / "the_ville" / "matrix"
    for folder in (matrix / "maze", matrix / "special_blocks"):
        folder.mkdir(parents=True)
    meta = {"world_name": "the town", "maze_width": WIDTH, "maze_height": HEIGHT}
    (matrix / "maze_meta_info.json").write_text(json.dumps(meta))
    layers = {"collision": [0] * WIDTH * HEIGHT, "arena": [], "game_object": []}
    for y in range(HEIGHT):
        for x in range(WIDTH):
            layers["arena"].append(HOUSE if x < 6 else CAFE)
            things = {(2, 2): BED, (4, 2): BED, (8, 5): TABLE}
            layers["game_object"].append(things.get((x, y), 0))
            rim = x in (0, WIDTH - 1) or y in (0, HEIGHT - 1)
            layers["collision"][y * WIDTH + x] = int(rim or (x == 6 and y != 4))
    for layer, ids in layers.items():
        (matrix / "maze" / f"{layer}_maze.csv").write_text(", ".join(map(str, ids)))
    blocks = matrix / "special_blocks"
    (blocks / "arena_blocks.csv").write_text(
        f"{HOUSE}, the town, Ash house, bedroom\n{CAFE}, the town, Corner Cafe, cafe\n"
    )
    (blocks / "game_object_blocks.csv").write_text(
        f"{BED}, the town, <all>, bed\n{TABLE}, the town, <all>, cafe customer seating\n"
    )
    (matrix.parent / "agent_history_init_n25.csv").write_text(
        'Name,Whisper\nAnn Ash,"You know Ben Birch; You like tea"\n'
    )
    stored = server / "storage" / "base_the_ville_n25"
    (stored / "environment").mkdir(parents=True)
    starts = {name: {"maze": "the_ville", "x": x, "y": y} for name, (x, y) in PEOPLE.items()}
    (stored / "environment" / "0.json").write_text(json.dumps(starts))
    for name in PEOPLE:
        memory = stored / "personas" / name / "bootstrap_memory"
        memory.mkdir(parents=True)
        (memory / "scratch.json").write_text(json.dumps(SCRATCH | {"name": name}))
    return root


def run_import(source: Path, out: Path, *words: str) -> Result:
    return CliRunner().invoke(command, ["import-genagent", str(source), "--out", str(out), *words])


def runs_in_both_modes(town: Path, steps: int) -> list[RunResult]:
    """Results in lockstep and out of order, whose histories are equal."""
    results = []
    for mode in ("lockstep", "out_of_order"):
        scenario = make_scenario(str(town))
        client = Client(Scripted(scenario.author))
        results.append(Simulation(scenario.world, scenario.agents, client, mode=mode).run(steps))
    assert len({result.history_sha256 for result in results}) == 1
    return results


def test_an_imported_town_runs(tmp_path: Path) -> None:
    out = tmp_path / "town"
    result = run_import(checkout(tmp_path / "source"), out)
    assert result.exit_code == 0, result.output
    assert "12 x 8 tiles, 2 residents" in result.output
    for run in runs_in_both_modes(out, 700):
        assert run.calls > 100
        assert set(run.history[0].actions) == set(PEOPLE)


def test_names_are_whole_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    output = run_import(checkout(tmp_path / "source"), tmp_path / "town").output
    (ann,) = (line for line in output.splitlines() if line.startswith("Ann Ash"))
    assert "Corner Cafe" in ann


def test_people_are_as_they_were(tmp_path: Path) -> None:
    out = tmp_path / "town"
    run_import(checkout(tmp_path / "source"), out)
    ann = make_scenario(str(out), agents=1).agents[0].profile
    assert (ann.name, ann.age, ann.at) == ("Ann Ash", 40, (2, 2))
    assert (ann.home, ann.room, ann.workplace) == ("Ash house", "bedroom", "Corner Cafe")
    assert ann.occupation == "baker"
    assert list(ann.memories) == ["You know Ben Birch", "You like tea"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("age", "old", "age"),
        ("currently", 7, "currently"),
        ("age", True, "age"),
        ("learned", "half \ud800", "a lone surrogate"),
        ("daily_plan_req", ["run"], "daily_plan_req"),
        ("living_area", 7, "living_area"),
        ("metropolis_workplace", 7, "metropolis_workplace is 7; it should be a text"),
        ("metropolis_workplace", "Nowhere", "it should be a sector of the map, or empty"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, field: str, value: object, said: str) -> None:
    source = checkout(tmp_path / "source")
    path = next(source.rglob("Ben Birch/bootstrap_memory/scratch.json"))
    path.write_text(json.dumps(SCRATCH | {field: value}))
    error = run_import(source, tmp_path / "town").exception
    assert isinstance(error, MetropolisError)
    assert str(path) in str(error)
    assert said in str(error)
    assert not (tmp_path / "town").exists()


@pytest.mark.parametrize("missing", ["maze_meta_info.json", "arena_maze.csv", "0.json"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    source = checkout(tmp_path / "source")
    path = next(source.rglob(missing))
    path.unlink()
    error = run_import(source, tmp_path / "town").exception
    assert isinstance(error, MetropolisError)
    assert str(path) in str(error)


def store(source: Path, persona_names: object, tiles: dict[str, object]) -> Path:
    """Write the names of a stored simulation and add start tiles; return the path of meta.json."""
    stored = next(source.rglob("storage")) / "base_the_ville_n25"
    starts = stored / "environment" / "0.json"
    starts.write_text(json.dumps(json.loads(starts.read_text()) | tiles))
    (stored / "reverie").mkdir()
    meta = stored / "reverie" / "meta.json"
    meta.write_text(json.dumps({"persona_names": persona_names}))
    return meta


def test_surplus_tiles_are_ignored_and_reported(tmp_path: Path) -> None:
    source = checkout(tmp_path / "source")
    store(source, ["Ben Birch"], {"Cy Cole": {"x": 0, "y": 0}})
    result = run_import(source, tmp_path / "town")
    assert result.exit_code == 0, result.output
    assert "ignored 2 start tiles" in result.output
    assert "Ann Ash, Cy Cole" in result.output
    agents = make_scenario(str(tmp_path / "town")).agents
    assert [agent.name for agent in agents] == ["Ben Birch"]


def test_json_says_where_a_workplace_comes_from(tmp_path: Path) -> None:
    source = checkout(tmp_path / "source")
    path = next(source.rglob("Ben Birch/bootstrap_memory/scratch.json"))
    plan = {"learned": "Ben is a painter.", "daily_plan_req": "Ben works in the café until 2pm."}
    path.write_text(json.dumps(SCRATCH | plan))
    arguments = ["import-genagent", str(source), "--out", str(tmp_path / "town"), "--json"]
    printed = json.loads(CliRunner().invoke(command, arguments).stdout)
    ben = {"name": "Ben Birch", "occupation": "painter", "workplace": "Corner Cafe"}
    ben |= {"arena": "cafe", "field": "daily_plan_req", "knows": [], "memories": 0}
    assert printed["residents"][1] == ben
    assert printed["surplus_tiles"] == []


@pytest.mark.parametrize(
    "names",
    [
        {},
        [],
        "Ann Ash",
        [7],
        ["Ann Ash", "Ann Ash"],
        ["Ann Ash", "Ann\xa0Ash"],
        ["../Ann Ash"],
        ["Ann\x1b[2J"],
    ],
)
def test_bad_persona_names_are_refused(tmp_path: Path, names: object) -> None:
    source = checkout(tmp_path / "source")
    meta = store(source, names, {})
    error = run_import(source, tmp_path / "town").exception
    assert isinstance(error, MetropolisError)
    assert f"{meta}: the field persona_names" in str(error)
    assert not (tmp_path / "town").exists()


@pytest.mark.parametrize(
    "tile", [None, 3, {"x": 2}, {"x": "2", "y": 2}, {"x": 1e999, "y": 2}, {"x": 99, "y": 0}]
)
def test_a_bad_start_tile_is_refused(tmp_path: Path, tile: object) -> None:
    source = checkout(tmp_path / "source")
    store(source, ["Ann Ash"], {"Ann Ash": tile})
    error = run_import(source, tmp_path / "town").exception
    assert isinstance(error, MetropolisError)
    assert "0.json" in str(error)
    assert "Ann Ash" in str(error)
    assert not (tmp_path / "town").exists()


def test_initial_memories_in_another_encoding_are_refused(tmp_path: Path) -> None:
    source = checkout(tmp_path / "source")
    path = next(source.rglob("agent_history_init_n25.csv"))
    path.write_bytes(b"Name,Whisper\nAnn Ash,\xff\n")
    error = run_import(source, tmp_path / "town").exception
    assert isinstance(error, MetropolisError)
    assert str(path) in str(error)


def test_a_bad_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match=r"town\.json"):
        make_scenario(str(tmp_path))
    whole, rest = divmod(4090 - len(f"{tmp_path}"), 101)  # of the 4,095 bytes that a path may have
    deep = tmp_path.joinpath(*["x" * 100] * whole, "x" * (rest - 1))
    deep.mkdir(parents=True)
    with pytest.raises(OSError, match=r"File name too long: .*/town\.json"):
        make_scenario(str(deep))
    out = tmp_path / "town"
    run_import(checkout(tmp_path / "source"), out)
    assert isinstance(run_import(tmp_path / "source", out).exception, MetropolisError), "exists"
    town = out / "town.json"
    content = json.loads(town.read_text())
    height, width = len(content["walls"]), len(content["walls"][0])
    for spoilt, sentence in (
        (
            {"walls": ["#"]},
            r"arenas have the shape \(.*\); it should be that of the walls, \(1, 1\)",
        ),
        ({"walls": [""], "arenas": [[]], "objects": [[]]}, r"walls have the shape \(1, 0\)"),
        ({"arena_names": [""]}, r"arenas are 1 to 2; .* indices into the 1 arena_names"),
        ({"arenas": [[-1] * width] * height}, "arenas are -1 to -1; .* indices into"),
        ({"arenas": [[1 << 40] * width] * height}, "is not a town's map"),
        ({"arena_names": ["", *["Inn"] * 99]}, "has the arena name 'Inn'; it should be `sector: "),
        ({"format": "map"}, "is not a town's map"),
    ):
        town.write_text(json.dumps(content | spoilt))
        with pytest.raises(MetropolisError, match=rf"town\.json.*{sentence}"):
            make_scenario(str(out))
    town.write_text(json.dumps(content))
    residents = out / "residents.toml"
    content = residents.read_text()
    residents.write_text(content.replace("at = [2,2]", "at = [0,0]"))
    with pytest.raises(MetropolisError, match="Ann Ash is at"):
        make_scenario(str(out))
    residents.write_text(re.sub('workplace = ".*"', 'workplace = "Nowhere"', content))
    with pytest.raises(MetropolisError, match="knows the place 'Nowhere', which is not on the map"):
        make_scenario(str(out))
