"""A run as a simulation of Generative Agents: as its viewer reads it, and as we import it."""

from __future__ import annotations

import html
import json
import runpy
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from metropolis import Client, Simulation
from metropolis.cli.export import command
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.maps.town import alderbrook
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.fork import fork
from metropolis.trace.importers import import_recording
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.types import MetropolisError
from metropolis.viewer.data.opening import open_run
from metropolis.viewer.data.trace_steps import TraceSteps
from metropolis.world.scenario import Scenario
from metropolis.worlds.minimal import make as make_minimal
from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.author import author
from metropolis.worlds.smallville.folder import populate
from metropolis.worlds.smallville.settings import PRESETS, Settings

EXAMPLE = Path(__file__).parents[2] / "examples/genagent_figures.py"
FIRST, STEPS = 2160, 560
"""Six hours of steps from midnight on; the run's own steps."""
PEOPLE = ("Dario Penn", "Edda Lindqvist", "Quinn Ashby", "Silas Crowe", "Wim de Groot")
STATE = (
    "first_name", "last_name", "age", "curr_time", "curr_tile", "vision_r", "att_bandwidth",
    "retention", "innate", "learned", "currently", "lifestyle", "daily_req", "act_address",
    "act_start_time", "act_description", "act_pronunciatio",
)  # fmt: skip
"""What the page "State Details" shows of `scratch.json`, without the schedule and a duration."""


def town() -> Scenario:
    profiles = [profile for profile in town_profiles() if profile.name in PEOPLE]
    return populate(alderbrook().map, profiles, None, "the town")


def in_bold(request: Request, random: Random) -> str:
    text = author(request, random)
    return text.replace("I ", "I <b>") if request.function == "iterative_convo" else text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, scenario = tmp_path_factory.mktemp("run") / "r", town()
    client = Client(Scripted(in_bold))
    Simulation(scenario.world, scenario.agents, client, out=folder).run(STEPS)
    return folder


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    out = run.parent / "exported"
    result = CliRunner().invoke(command, ["genagent", str(run), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert f"begins at step {FIRST}" in result.output
    return out


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("form", ["", "master_movement.json"])
def test_an_import_gives_the_movement_of_the_run(run: Path, exported: Path, form: str) -> None:
    recorded, imported = (
        read_trace(run / "trace.parquet"),
        import_recording(exported / form, radius=4).trace,
    )
    assert imported.meta.agents == recorded.meta.agents
    assert imported.steps == FIRST + STEPS
    assert np.array_equal(imported.positions[FIRST:], recorded.positions)
    assert (imported.positions[:FIRST] == recorded.positions[0]).all()
    assert len(np.unique(recorded.positions.reshape(STEPS, -1), axis=0)) > 20
    assert imported.hour_of_step(FIRST) == recorded.hour_of_step(0) == 6


@pytest.mark.parametrize("form", ["", "master_movement.json"])
def test_our_viewer_shows_the_same_of_the_run_and_of_its_import(
    run: Path, exported: Path, form: str, tmp_path: Path
) -> None:
    write_trace(import_recording(exported / form, radius=4).trace, tmp_path / "t.parquet")
    imported = TraceSteps(read_trace(tmp_path / "t.parquet").window(FIRST, FIRST + STEPS))
    side = open_run(run).steps
    side.refresh()

    def moments(steps: Any) -> list[Any]:
        found = [json.loads(steps.moments(number)) for number in range(steps.chunks)]
        looks = {agent: look["label"] for agent, look in found[0]["now"].items()}
        told = [
            (step, agent, kind, text, kind == "says" and more["to"])
            for chunk in found
            for step, agent, kind, text, more in chunk["moments"]
            if step < STEPS - 1 and kind in ("does", "says")
        ]
        return [looks, *told]

    assert moments(imported) == moments(side)
    assert any(moment[2] == "says" for moment in moments(imported)[1:])


def test_the_viewers_pages_find_what_they_read(exported: Path) -> None:
    master, meta = read(exported / "master_movement.json"), read(exported / "meta.json")
    assert [*map(int, master)] == [*range(FIRST + STEPS)]
    assert meta["persona_names"] == [*master["0"]]
    assert read(exported / "reverie" / "meta.json") == meta
    assert {path.name for path in (exported / "personas").iterdir()} == {*master["0"]}
    for name in master["0"]:
        underscored = name.replace(" ", "_")
        assert underscored.replace("_", " ", 1) == name  # how the page `demo` finds an agent
        memory = exported / "personas" / name / "bootstrap_memory"
        scratch = read(memory / "scratch.json")
        assert [key for key in STATE if scratch.get(key) in (None, "", [])] == []
        nodes = read(memory / "associative_memory" / "nodes.json")
        assert [*nodes] == [f"node_{number}" for number in range(len(nodes), 0, -1)]
    shown: dict[str, Any] = {}
    for step, changed in master.items():
        shown |= changed
        moves = read(exported / "movement" / f"{step}.json")
        assert moves["persona"] == shown
    assert moves["meta"]["curr_time"] == "February 13, 2023, 07:33:10"
    assert meta["curr_time"] == "February 13, 2023, 07:33:20"
    assert all(len(move["description"].split("@")) == 2 for move in shown.values())
    assert [*read(exported / "environment" / "0.json")] == meta["persona_names"]


def test_figures_are_those_of_the_run_without_the_hours_before_it(exported: Path) -> None:
    figures = runpy.run_path(str(EXAMPLE))["column"](exported)
    assert figures["people, hours"] == f"5, {STEPS / 360:g}"
    talking: list[bool] = []
    former: dict[str, Any] = {}
    for step, changed in read(exported / "master_movement.json").items():
        former |= changed
        talking += [bool(of["chat"]) for of in former.values()] if int(step) >= FIRST else []
    assert figures["time in conversation"] == f"{sum(talking) / len(talking):.1%}"


def test_a_conversation_is_shown_by_both_while_they_hold_it(run: Path, exported: Path) -> None:
    moves = [read(exported / "movement" / f"{FIRST + step}.json") for step in range(STEPS)]
    talks = 0
    for record in RunDirectory(run).records(STEPS):
        for event in record.events:
            if event.kind != "conversation":
                continue
            talks += 1
            said = [[who, html.escape(text, quote=False)] for who, text in event["lines"]]
            assert "<b>" in str(event["lines"])
            for name in (event.source, event["partner"]):
                chats = [move["persona"][name]["chat"] for move in moves]
                until = min(STEPS, event["until"])
                assert all(chat == said for chat in chats[event.step : until])
                assert chats[event.step - 1] is None
                nodes = read(
                    exported / f"personas/{name}/bootstrap_memory/associative_memory/nodes.json"
                )
                assert [[*line] for line in event["lines"]] in [
                    n["filling"] for n in nodes.values()
                ]
    assert talks
    assert any(move["persona"]["Quinn Ashby"]["chat"] is None for move in moves[-200:])


@pytest.mark.parametrize(
    ("settings", "factors", "decay"),
    [
        (PRESETS["paper"], (2, 1 / 3, 1 / 2), 0.995),
        (PRESETS["code-1.0"], (1, 1, 1), 0.99),
        (replace(PRESETS["code-1.0"], relevance_weight=6.0, vision_tiles=7), (1, 2, 1), 0.99),
    ],
    ids=["paper", "code-1.0", "own"],
)
def test_the_settings_are_the_residents_own(
    tmp_path: Path, settings: Settings, factors: tuple[float, ...], decay: float
) -> None:
    silas, wim = (of for of in town_profiles() if of.name in ("Silas Crowe", "Wim de Groot"))
    scenario = populate(alderbrook().map, [replace(silas, settings=settings), wim], None, "town")
    client = Client(Scripted(author))
    Simulation(scenario.world, scenario.agents, client, out=tmp_path / "r").run(3)
    words = ["genagent", str(tmp_path / "r"), "--out", str(tmp_path / "o")]
    assert CliRunner().invoke(command, words).exit_code == 0
    scratch = [
        read(next((tmp_path / "o" / "personas").glob(f"{name}*")) / "bootstrap_memory/scratch.json")
        for name in ("Silas", "Wim")
    ]
    fields = ("recency_w", "relevance_w", "importance_w")
    assert tuple(scratch[0][field] for field in fields) == pytest.approx(factors)
    assert (scratch[0]["recency_decay"], scratch[0]["vision_r"]) == (decay, settings.vision_tiles)
    assert scratch[0]["metropolis_settings"] == asdict(settings)
    assert scratch[1]["metropolis_settings"] == asdict(PRESETS["paper"])


def test_a_branch_shows_what_its_edit_left(run: Path, tmp_path: Path) -> None:
    def paint(moment: Any) -> None:
        body = moment.entities["Silas Crowe"]
        moment.entities["Silas Crowe"] = replace(
            body, state={**body.state, "doing": "painted @ <it>"}
        )

    scenario = town()
    branch = tmp_path / "branch"
    fork(run, scenario.world, scenario.agents, at=3, out=branch, edit=paint)
    client = Client(Scripted(author))
    Simulation(scenario.world, scenario.agents, client, out=branch, resume=True).run(5)
    out = tmp_path / "exported"
    assert CliRunner().invoke(command, ["genagent", str(branch), "--out", str(out)]).exit_code == 0
    shown = [
        read(out / f"movement/{FIRST + step}.json")["persona"]["Silas Crowe"]["description"]
        for step in range(5)
    ]
    assert ["painted" in text for text in shown] == [False, False, False, True, True]
    assert shown[3].startswith("painted at &lt;it&gt; @ alderbrook")


def test_what_cannot_be_exported_is_refused(run: Path, exported: Path, tmp_path: Path) -> None:
    def error(*words: str) -> str:
        failed = CliRunner().invoke(command, ["genagent", *words]).exception
        assert isinstance(failed, MetropolisError)
        return str(failed)

    assert "holds no run" in error(str(tmp_path), "--out", str(tmp_path / "o"))
    assert "exists" in error(str(run), "--out", str(exported))
    refusal = "the name 'a b' cannot be part of the server's addresses; it should consist of le"
    assert refusal in error(str(run), "--out", str(tmp_path / "a b"))
    assert not (tmp_path / "a b").exists()
    scenario = make_minimal(agents=2)
    client = Client(Scripted(scenario.author))
    folder = tmp_path / "minimal"
    Simulation(scenario.world, scenario.agents, client, out=folder).run(2)
    assert "without a grid map" in error(str(folder), "--out", str(tmp_path / "o"))
    assert not (tmp_path / "o").exists()
