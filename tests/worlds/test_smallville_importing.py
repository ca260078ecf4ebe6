"""People of a stored simulation with what they remember, plan and do."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis import Client, MetropolisError, Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.worlds.smallville.genagent.files import Fields
from metropolis.worlds.smallville.genagent.mind import read_memories, relations_of, schedule_of
from metropolis.worlds.smallville.memory import Node
from metropolis.worlds.smallville.settings import PRESETS
from metropolis.worlds.smallville.state import DAY_S
from tests.cli.test_world import SCRATCH, checkout, run_import

MIDNIGHT = datetime(2023, 2, 14)
STOPPED = {
    "curr_time": "February 14, 2023, 17:59:50",
    "curr_tile": [8, 5],
    "vision_r": 6,
    "att_bandwidth": 5,
    "retention": 7,
    "recency_w": 1,
    "relevance_w": 2,
    "importance_w": 1,
    "recency_decay": 0.98,
    "importance_trigger_max": 120,
    "importance_trigger_curr": 17,
    "daily_req": ["wake up at six", "bake bread"],
    "f_daily_schedule_hourly_org": [
        ["sleeping", 360], ["baking", 660], ["chess", 240], ["sleeping", 180],
    ],
    "f_daily_schedule": [
        ["sleeping", 360], ["baking (kneading)", 660], ["chess (opening)", 75],
        ["chess (on the way)", 0], ["chess (end game)", 165], ["sleeping", -5], ["sleeping", 185],
    ],
    "act_address": "the town:Corner Cafe:cafe:cafe customer seating",
    "act_start_time": "February 14, 2023, 17:30:00",
    "act_duration": 45,
    "act_description": "chess (opening)",
    "act_pronunciatio": "♟️",
    "act_obj_description": "being sat on",
    "planned_path": [],
    "daily_plan_req": "1. Wake up. 2. Bake.",
}  # fmt: skip


def node(number: int, kind: str, text: str, filling: Any = (), **other: Any) -> dict[str, Any]:
    return {
        "node_count": number, "type": kind, "created": f"2023-02-13 {number % 24:02d}:00:00",
        "subject": "Ann Ash", "predicate": "chat with", "object": "Ben Birch",
        "description": text, "poignancy": 7, "filling": filling,
    } | other  # fmt: skip


def stored(path: Path, nodes: list[dict[str, Any]]) -> Path:
    """Write nodes as the project does, the newest first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({f"node_{of['node_count']}": of for of in reversed(nodes)}))
    return path


NODES = [
    node(1, "event", "bed is idle", subject="the town:Ash house:bedroom:bed", object="idle"),
    node(2, "chat", "conversing about bread", [["Ann Ash", "Hello."], ["Ben Birch", "Hi."]]),
    node(3, "thought", "Ann Ash likes Ben Birch", ["node_1", "node_2"]),
    node(4, "thought", "Ann Ash should bake", "node_2"),
    node(5, "thought", "Ann Ash should bake", None),
]


NODES_CHAT = "Ann Ash and Ben Birch are conversing about bread"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A simulation that stopped at six in the evening of its second day, for Ann."""
    source = checkout(tmp_path / "source")
    root = next(source.rglob("Ann Ash/bootstrap_memory"))
    (root / "scratch.json").write_text(json.dumps(SCRATCH | STOPPED))
    stored(root / "associative_memory" / "nodes.json", NODES)
    places = {"the town": {"Corner Cafe": {"cafe": ["cafe customer seating"]}, "Moon": {"sea": []}}}
    (root / "spatial_memory.json").write_text(json.dumps(places))
    meta = next(source.rglob("storage")) / "base_the_ville_n25" / "reverie" / "meta.json"
    meta.parent.mkdir()
    meta.write_text(json.dumps({"curr_time": "February 14, 2023, 18:00:00"}))
    return source


def test_a_stopped_simulation_continues(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "town"
    result = run_import(source, out)
    assert result.exit_code == 0, result.output
    assert "from 2023-02-14 18:00 on" in result.output
    assert "1 known places that are not on the map: Moon: sea" in result.output
    scenario = make_scenario(str(out))
    ann, ben = scenario.agents
    assert scenario.steps == 19 * 360
    assert [(of.kind, of.created_s // 3600) for of in ann.memory.nodes[:4]] == [
        ("event", -23), ("chat", -22), ("thought", -21), ("thought", -19),
    ]  # fmt: skip
    assert ann.memory.nodes[1].text == "Ann Ash and Ben Birch are conversing about bread"
    assert [of.evidence for of in ann.memory.nodes[2:4]] == [(0, 1), ()]
    assert ann.talked == {"Ben Birch": -22 * 3600}
    assert ann.unreflected == 17
    own = ann.settings
    assert (own.vision_tiles, own.attention_bandwidth, own.retention) == (6, 5, 7)
    assert (own.relevance_weight, own.reflection_threshold) == (2, 120)
    assert own.recency_decay == 0.995  # per hour; that of the file is per rank
    assert [(of.what, of.end_s / 3600) for of in ann.day.hours] == [
        ("sleeping", 6), ("baking", 17), ("chess", 21), ("sleeping", 24),
    ]  # fmt: skip
    assert [(of.what, of.end_s / 3600) for of in ann.day.tasks] == [
        ("opening", 18.25),
        ("end game", 21),
    ]
    assert ann.day.outline == ["wake up at six", "bake bread"]
    assert ann.profile.habits == SCRATCH["lifestyle"]
    assert "Corner Cafe" in ann.known
    assert (ben.memory.nodes, ben.talked, ben.day.number) == ([], {}, -1)
    histories = set()
    for mode in ("lockstep", "out_of_order"):
        scenario = make_scenario(str(out))
        run = Simulation(
            scenario.world, scenario.agents, Client(Scripted(scenario.author)), mode=mode
        )
        records = [*run.steps(1500)]
        histories.add(run.result().history_sha256)
    assert len(histories) == 1
    bodies = {body.name: body for body in scenario.world.reset(seed=0, options={})}
    assert bodies["Ann Ash"].position == (8, 5)
    assert (bodies["Ann Ash"]["doing"], bodies["Ann Ash"]["asleep"]) == ("opening", False)
    assert bodies["Ann Ash"]["until_s"] == 18 * 3600 + 15 * 60
    assert bodies["Ben Birch"]["asleep"]
    begun = [
        (record.step // 6, body["doing"])
        for record in records
        if (body := record.writes.get("Ann Ash")) is not None and "conversing" not in body["doing"]
    ]
    assert (15, "end game") in begun
    assert any(doing == "sleeping" and minute >= 180 for minute, doing in begun)


def test_weights_of_the_code_are_those_of_its_preset(source: Path, tmp_path: Path) -> None:
    assert run_import(source, tmp_path / "town", "--preset", "code-1.0").exit_code == 0
    own = make_scenario(str(tmp_path / "town")).agents[0].settings
    assert (own.recency, own.recency_weight, own.relevance_weight) == ("rank", 0.5, 6)
    assert own.recency_decay == 0.98


def test_settings_of_an_exported_run_are_kept(source: Path, tmp_path: Path) -> None:
    path = next(source.rglob("Ann Ash/bootstrap_memory/scratch.json"))
    own = replace(PRESETS["code-1.0"], relevance_weight=0.7, idle_objects=False)
    path.write_text(json.dumps(SCRATCH | STOPPED | {"metropolis_settings": asdict(own)}))
    assert run_import(source, tmp_path / "town").exit_code == 0
    assert make_scenario(str(tmp_path / "town")).agents[0].settings == own


def test_who_is_on_the_way_to_bed_sleeps_there(source: Path, tmp_path: Path) -> None:
    path = next(source.rglob("Ann Ash/bootstrap_memory/scratch.json"))
    way = {"act_description": "going to bed", "planned_path": [[4, 2]], "curr_tile": [2, 4]}
    path.write_text(json.dumps(SCRATCH | STOPPED | way))
    assert run_import(source, tmp_path / "town").exit_code == 0
    scenario = make_scenario(str(tmp_path / "town"))
    ann = scenario.agents[0]
    assert (ann.activity.goal, ann.activity.asleep, ann.abed) == ((4, 2), True, False)
    Simulation(scenario.world, scenario.agents, Client(Scripted(scenario.author))).run(10)
    assert ann.abed


def test_people_are_at_the_time_of_the_simulation(source: Path, tmp_path: Path) -> None:
    path = next(source.rglob("Ann Ash/bootstrap_memory/scratch.json"))
    late = {"curr_time": "February 14, 2023, 19:30:00"}
    path.write_text(json.dumps(SCRATCH | STOPPED | late))
    result = run_import(source, tmp_path / "town")
    assert isinstance(result.exception, MetropolisError)
    assert "curr_time is 'February 14, 2023, 19:30:00'; it should be the time of the simu" in str(
        result.exception
    )
    assert not (tmp_path / "town").exists()


def test_a_conversation_ends(source: Path, tmp_path: Path) -> None:
    path = next(source.rglob("Ann Ash/bootstrap_memory/scratch.json"))
    talk = {"act_description": "conversing about tea", "chatting_with": "Ben Birch"}
    talk |= {"curr_tile": [2, 4]}
    path.write_text(json.dumps(SCRATCH | STOPPED | talk))
    assert run_import(source, tmp_path / "town").exit_code == 0
    scenario = make_scenario(str(tmp_path / "town"))
    bodies = {body.name: body for body in scenario.world.reset(seed=0, options={})}
    ann = bodies["Ann Ash"]
    assert (ann["doing"], ann["asleep"], ann.position) == ("idle", False, (2, 4))
    assert not scenario.agents[0].abed
    client = Client(Scripted(scenario.author))
    result = Simulation(scenario.world, scenario.agents, client).run(2)
    assert scenario.agents[0].activity.what, "she has begun something"
    assert not any("Ann Ash is sleeping" in node.text for node in scenario.agents[1].memory.nodes)
    assert result.steps == 2


def test_a_random_object_is_none(source: Path, tmp_path: Path) -> None:
    path = next(source.rglob("Ann Ash/bootstrap_memory/scratch.json"))
    somewhere = {"act_address": "the town:Corner Cafe:cafe:<random>"}
    path.write_text(json.dumps(SCRATCH | STOPPED | somewhere))
    assert run_import(source, tmp_path / "town").exit_code == 0
    ann = make_scenario(str(tmp_path / "town")).agents[0]
    assert (ann.activity.place, ann.activity.thing) == ("Corner Cafe: cafe", "")


def test_the_map_is_that_of_the_simulation_if_there_is_one(source: Path, tmp_path: Path) -> None:
    meta = next(source.rglob("base_the_ville_n25")) / "reverie" / "meta.json"
    known = json.loads(meta.read_text())
    meta.write_text(json.dumps(known | {"maze_name": "the_isle"}))
    result = run_import(source, tmp_path / "ville")
    assert result.exit_code == 0, result.output
    assert "maze_name is 'the_isle'" in result.output
    assert "is not a folder; imported the_ville" in result.output
    isle = shutil.copytree(
        next(source.rglob("the_ville")), next(source.rglob("assets")) / "the_isle"
    )
    map_file = isle / "matrix" / "maze_meta_info.json"
    map_file.write_text(map_file.read_text().replace("the town", "the isle"))
    result = run_import(source, tmp_path / "isle")
    assert result.exit_code == 0, result.output
    assert "maze_name" not in result.output
    assert "the isle, 12 x 8 tiles" in result.output
    for name in ("../the_ville", 7):
        meta.write_text(json.dumps(known | {"maze_name": name}))
        error = run_import(source, tmp_path / "no").exception
        assert isinstance(error, MetropolisError)
        assert "the field maze_name is" in str(error)


def test_a_relation_that_is_known_from_a_chat_is_no_further_memory(
    source: Path, tmp_path: Path
) -> None:
    root = next(source.rglob("Ann Ash/bootstrap_memory"))
    stored(root / "associative_memory" / "nodes.json", NODES[:2])
    assert run_import(source, tmp_path / "town").exit_code == 0
    ann = make_scenario(str(tmp_path / "town")).agents[0]
    assert ann.profile.relations == {"Ben Birch": NODES_CHAT}
    assert [of.text for of in ann.memory.nodes].count(NODES_CHAT) == 1


def test_names_of_three_words_beds_and_empty_fields(tmp_path: Path) -> None:
    """As metropolis exports them; a person who does not begin in bed sleeps there nevertheless."""
    source = checkout(tmp_path / "source")
    root = next(source.rglob("personas"))
    (root / "Ann Ash").rename(root / "Ann de\xa0Ash")
    scratch = root / "Ann de\xa0Ash" / "bootstrap_memory" / "scratch.json"
    scratch.write_text(json.dumps(SCRATCH | {"currently": "", "learned": ""}))
    starts = root.parent / "environment" / "0.json"
    tiles = json.loads(starts.read_text())
    starts.write_text(json.dumps(tiles | {"Ann de\xa0Ash": {"x": 8, "y": 5}}))
    result = run_import(source, tmp_path / "town")
    assert result.exit_code == 0, result.output
    ann, ben = make_scenario(str(tmp_path / "town")).agents
    assert (ann.name, ann.profile.goal, ann.profile.at, ann.bed) == (
        "Ann de Ash",
        "",
        (8, 5),
        (2, 2),
    )
    assert ben.bed == ben.profile.at


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("scratch.json", "curr_tile", [0.5, 2]),
        ("scratch.json", "curr_tile", [-1, 2]),
        ("scratch.json", "planned_path", [[2, 2], [2, 999]]),
        ("scratch.json", "planned_path", {"a": 1}),
        ("scratch.json", "act_duration", float("inf")),
        ("scratch.json", "vision_r", 10**400),
        ("scratch.json", "recency_w", float("nan")),
        ("scratch.json", "f_daily_schedule_hourly_org", [["sleeping"]]),
        ("scratch.json", "act_start_time", "yesterday"),
        ("scratch.json", "act_start_time", "February 14, 2023, 18:00:10"),
        ("scratch.json", "vision_r", "far"),
        ("scratch.json", "retention", 0),
        ("scratch.json", "daily_req", "a day"),
        ("scratch.json", "metropolis_settings", []),
        ("scratch.json", "metropolis_settings", {"vision": 3}),
        ("scratch.json", "metropolis_settings", {"recency": "days"}),
        ("nodes.json", "type", "dream"),
        ("nodes.json", "created", "2023"),
        ("nodes.json", "created", "2023-02-14 18:00:01"),
        ("nodes.json", "poignancy", None),
        ("nodes.json", "poignancy", float("inf")),
        ("nodes.json", "object", 3),
    ],
)
def test_a_bad_field_is_named(
    source: Path, tmp_path: Path, file: str, field: str, value: object
) -> None:
    path = next(source.rglob(f"Ann Ash/**/{file}"))
    content = json.loads(path.read_text())
    (content["node_3"] if file == "nodes.json" else content)[field] = value
    path.write_text(json.dumps(content))
    error = run_import(source, tmp_path / "town").exception
    assert isinstance(error, MetropolisError)
    assert str(path) in str(error)
    assert field in str(error)
    assert not (tmp_path / "town").exists()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_memories_keep_their_order_and_evidence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    numbers = sorted(data.draw(st.sets(st.integers(1, 60), max_size=12)))
    named = st.integers(0, 70).map(lambda number: f"node_{number}")
    fillings = st.one_of(st.none(), named, st.lists(named, max_size=4), st.just("evidence"))
    nodes = [
        node(number, "thought", f"thought {number}", data.draw(fillings)) for number in numbers
    ]
    path = stored(tmp_path_factory.mktemp("m") / "nodes.json", nodes)
    found = read_memories(path, MIDNIGHT)
    assert [of.text for of in found] == [f"thought {number}" for number in numbers]
    for place, (of, written) in enumerate(zip(found, nodes, strict=True)):
        filling = written["filling"]
        listed = filling if isinstance(filling, list) else [filling]
        others = [f"node_{number}" for number in numbers if number != numbers[place]]
        assert [f"node_{numbers[of]}" for of in of.evidence] == [x for x in listed if x in others]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(-20, 900))))
def test_a_schedule_covers_the_day(entries: list[tuple[str, int]]) -> None:
    listed = [[what, minutes] for what, minutes in entries]
    tasks = schedule_of(Fields({"plan": listed}, "file"), "plan")
    assert (tasks == []) == all(minutes <= 0 for _, minutes in entries)
    for task, following in pairwise(tasks):
        assert task.start_s < task.end_s == following.start_s
    assert not tasks or (tasks[0].start_s, tasks[-1].end_s) == (0, DAY_S)


def test_names_in_texts_without_spaces() -> None:
    texts = ["我和Ben Birch是室友。太后是我的母亲。", "Ann likes Eveline."]
    assert relations_of("Ann Ash", texts, [], ["Ben Birch", "太后", "Eve Elm"]) == {
        "Ben Birch": "我和Ben Birch是室友。",
        "太后": "太后是我的母亲。",
    }


def test_relations_are_sentences_that_name_the_other() -> None:
    texts = ["Ann is a baker. Ann lives with her cousin, Ben Birch.", "Cy owes her money."]
    thoughts = [
        Node("thought", "Ann noticed that Dan sings", 0, 5, "Ann", "notice", "Dan"),
        Node(
            "chat", "Ann and Eve Elm are conversing about tea", 1, 5, "Ann", "chat with", "Eve Elm"
        ),
    ]
    others = ["Ben Birch", "Cy Cole", "Dan Dee", "Eve Elm", "Flo Fir", "Cy Dell"]
    assert relations_of("Ann Ash", texts, thoughts, others) == {
        "Ben Birch": "Ann lives with her cousin, Ben Birch.",
        "Dan Dee": "Ann noticed that Dan sings",
        "Eve Elm": "Ann and Eve Elm are conversing about tea",
    }
