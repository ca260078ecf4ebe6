"""A run's chunks say what its trace, its calls, its checkpoints and its timeline say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from metropolis.durable import read_object, write_object
from metropolis.runtime.folder.calls_file import calls_by_step
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.reruns.fork import fork
from metropolis.timeline.reader import read_timeline
from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError
from metropolis.viewer.data.chunks import NoChunkError
from metropolis.viewer.data.opening import open_run, open_sides
from metropolis.viewer.data.side import Side
from metropolis.world.scenario import make_scenario
from tests.viewer.conftest import run_metropolis
from tests.viewer.data.conftest import AGENTS, STEPS, WORLD, simulation


def content(side: Side, name: str, number: int | str = 0) -> Any:
    return json.loads(side.chunk(name, f"{number}"))


def test_positions_are_those_of_the_trace(shared_run: Path) -> None:
    trace = read_trace(shared_run)
    found = np.frombuffer(open_run(shared_run).chunk("positions", "0"), np.float32)
    assert np.array_equal(found.reshape(STEPS + 1, AGENTS, 2)[:STEPS], trace.positions)


def test_meta(shared_run: Path) -> None:
    side = open_run(shared_run)
    meta, trace, timeline = content(side, "meta"), read_trace(shared_run), read_timeline(shared_run)
    assert meta["title"] == "green"
    assert (meta["kind"], meta["world"], meta["mode"]) == ("run", WORLD, "out_of_order")
    assert meta["agents"] == [*trace.meta.agents]
    assert (meta["steps"], meta["target"], meta["calls"]) == (STEPS, STEPS, len(trace.calls))
    assert meta["start"] == trace.meta.start.isoformat()
    assert (meta["clock"], meta["live"], meta["forked"], meta["note"]) == (
        "simulated",
        False,
        None,
        None,
    )
    assert meta["end_s"] == max(timeline.makespan_s, float(np.float32(timeline.makespan_s)))
    assert meta["counts"] == dict.fromkeys(("positions", "moments", "executions", "calls"), 1)
    assert (meta["map"], meta["graph"]) == (None, None)


def test_what_was_said_is_what_the_calls_answered(shared_run: Path) -> None:
    side = open_run(shared_run)
    answers = {
        (step, agent): call.completion
        for _, calls in calls_by_step(shared_run / "calls.jsonl")
        for step, agent, call in calls
    }
    moments = content(side, "moments")["moments"]
    assert answers
    assert {(step, agent): text for step, agent, kind, text, _ in moments} == answers
    trace = read_trace(shared_run)
    for step, agent, kind, _, extra in moments:
        assert kind == "says"
        if step + 1 < STEPS:
            far = np.abs(trace.positions[step + 1] - trace.positions[step + 1][agent]).max(axis=1)
            # the event happens where the agent was before its move, of one tile
            near = {other for other in np.flatnonzero(far <= 3).tolist() if other != agent}
            assert near <= {*extra["to"]} <= {*np.flatnonzero(far <= 5).tolist()} - {agent}


def test_texts_of_calls(shared_run: Path) -> None:
    side = open_run(shared_run)
    kept = {
        (step, agent): call
        for _, calls in calls_by_step(shared_run / "calls.jsonl")
        for step, agent, call in calls
    }
    for index in range(side.timeline.calls):
        step, agent, number = side.timeline.call(index)
        call = kept[step, agent]
        assert number == 0
        assert content(side, "call", index) == {
            "prompt": call.prompt,
            "completion": call.completion,
            "note": None,
        }
    with pytest.raises(NoChunkError):
        side.chunk("call", f"{side.timeline.calls}")


def test_texts_that_were_not_kept(tmp_path: Path) -> None:
    simulation(tmp_path / "run").run(20)
    found = content(open_run(tmp_path / "run"), "call")
    assert found["prompt"] is None
    assert "--keep-text" in found["note"]


def test_minds_are_those_of_the_checkpoint(shared_run: Path) -> None:
    side = open_run(shared_run)
    checkpoint = RunDirectory(shared_run).checkpoints.read(STEPS)
    for agent, name in enumerate(side.trace_meta.agents):
        found = content(side, "mind", f"{agent}-{STEPS}")
        shown = {memory["kind"]: memory["text"] for memory in found["memories"]}
        assert shown["rumour"] == checkpoint.agents[name]["rumour"]
        assert found["note"] == f"As of the checkpoint of step {STEPS}."


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("positions", "1"),
        ("positions", "-1"),
        ("positions", "99999999999999999999"),
        ("positions", "٣"),
        ("calls", "1.0"),
        ("meta", "1"),
        ("ends", "7"),
        ("mind", "3"),
        ("mind", "0-"),
        ("mind", "-1-2"),
        ("secrets", "0"),
        ("../run", "0"),
        ("call", "999999999"),
    ],
)
def test_there_is_no_such_chunk(shared_run: Path, name: str, number: str) -> None:
    with pytest.raises(NoChunkError):
        open_run(shared_run).chunk(name, number)


def test_a_run_is_followed(tmp_path: Path) -> None:
    run = simulation(tmp_path)
    steps = run.steps(STEPS)
    next(steps)
    side = open_run(tmp_path)
    assert side.meta()["live"]
    assert side.status()["state"] == "runs"
    assert side.status()["newest"] >= side.status()["floor"]
    for _ in steps:
        changed = side.refresh()
        assert ({"positions", "moments"} <= changed.keys()) or not changed.get("positions")
    side.refresh()
    whole = open_run(tmp_path)
    assert side.meta() == whole.meta() | {"functions": side.meta()["functions"]}
    assert not whole.meta()["live"]
    for name in ("positions", "moments", "executions", "ends"):
        assert side.chunk(name, "0") == whole.chunk(name, "0")


def test_before_the_first_step(tmp_path: Path) -> None:
    run = simulation(tmp_path)
    run._recording.describe(run._initial, 5, simulated=True)
    side = open_run(tmp_path)
    meta = side.meta()
    assert (meta["steps"], meta["calls"], meta["counts"]["positions"]) == (0, 0, 1)
    assert len(side.chunk("positions", "0")) == 8 * AGENTS
    assert content(side, "moments")["moments"] == []
    assert "recorded no timeline" in meta["note"]
    assert content(side, "mind", "0-0")["memories"] is None
    assert side.chunk("bounds", "0") == side.chunk("ends", "0") == b""
    run._recording.recorder.close()


def test_a_branch_beside_its_run(shared_run: Path, tmp_path: Path) -> None:
    def edit(moment: Any) -> None:
        moment.agents["Villager 1"].rumour = "The miller has lost 70 geese"

    scenario = make_scenario(WORLD, agents=AGENTS, seed=1)
    fork(shared_run, scenario.world, scenario.agents, at=30, out=tmp_path / "b", edit=edit)
    with pytest.raises(MetropolisError, match=r"has no view\.json"):
        open_run(tmp_path / "b")
    scenario = make_scenario(WORLD, agents=AGENTS, seed=1)
    Simulation(scenario.world, scenario.agents, out=tmp_path / "b", resume=True).run(STEPS)
    run, branch = open_sides(shared_run, f"{tmp_path / 'b'}")
    assert run.meta()["note"] is None
    assert "durations may lack theirs" in branch.meta()["note"]
    forked = branch.meta()["forked"]
    assert (forked["run"], forked["step"]) == (f"{shared_run}", 30)
    assert "Villager 1" in forked["edits"]
    before = [side.chunk("positions", "0")[: 30 * AGENTS * 8] for side in (run, branch)]
    assert before[0] == before[1]
    committed = np.frombuffer(branch.chunk("executions", "0"), np.float32).reshape(4, -1)[1]
    assert not np.isnan(committed).any()


def test_a_race_of_a_run_s_own_trace(shared_run: Path) -> None:
    lockstep, own = open_sides(shared_run, "lockstep")
    assert [side.meta()["mode"] for side in (lockstep, own)] == ["lockstep", "versioned"]
    assert lockstep.meta()["end_s"] >= own.meta()["end_s"]
    assert own.meta()["end_s"] == open_run(shared_run).meta()["end_s"]
    assert "Simulated on 1 x llama-3-8b/l4" in own.meta()["note"]
    moments = open_run(shared_run).chunk("moments", "0")
    for side in (lockstep, own):
        assert side.chunk("moments", "0") == moments
        assert content(side, "call")["prompt"]
        assert content(side, "mind", "0-3")["memories"] is None
        assert side.refresh() == {}
    with pytest.raises(MetropolisError, match="name another mode"):
        open_sides(shared_run, "versioned")


def test_a_race_uses_the_run_s_policy_and_dispatcher(tmp_path: Path) -> None:
    options = ("--policy", "fcfs", "--dispatcher", "round_robin", "--instances", "2")
    run_metropolis(
        "run", WORLD, *options, "--agents", "30", "--steps", "60", "--out", tmp_path / "a"
    )
    _, own = open_sides(tmp_path / "a", "lockstep")
    assert own.meta()["end_s"] == open_run(tmp_path / "a").meta()["end_s"]
    assert "policy fcfs" in own.meta()["note"]


def rewritten(path: Path, **fields: Any) -> None:
    kept = read_object(path, "")
    kept.pop("crc32", None)
    write_object(path, kept | fields)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "run.json").unlink(), "run.json: does not exist; restore the file"),
        (lambda f: (f / "view.json").unlink(), "has no view.json"),
        (lambda f: (f / "view.json").write_text("{}"), "view.json: is damaged"),
        (lambda f: rewritten(f / "view.json", version=9), "view.json: is of another format"),
        (lambda f: rewritten(f / "view.json", beginning=[]), "has 0 positions"),
        (lambda f: rewritten(f / "view.json", looks="x"), "view.json: Expected `array`"),
        (lambda f: rewritten(f / "view.json", trace={}), "view.json, metadata: format"),
        (
            lambda f: [path.write_bytes(b"not arrow") for path in (f / "timeline").iterdir()],
            None,
        ),
        (lambda f: rmtree(f / "timeline"), None),
        (lambda f: (f / "history.jsonl").write_bytes(b"x\n"), None),
        (lambda f: (f / "history.jsonl").unlink(), None),
    ],
)
def test_damaged_folders(run_copy: Path, damage: Any, sentence: str | None) -> None:
    damage(run_copy)
    if sentence is None:  # what is left can be shown
        side = open_run(run_copy)
        assert len(side.chunk("positions", "0")) in (8 * AGENTS, 8 * AGENTS * (STEPS + 1))
        assert side.meta()["note"] or not side.meta()["steps"]
    else:
        with pytest.raises(MetropolisError, match=re.escape(sentence)):
            open_run(run_copy)


def test_files_that_are_damaged_or_removed_while_they_are_shown(run_copy: Path) -> None:
    side = open_run(run_copy)
    (run_copy / "calls.jsonl").write_bytes(b"\xff")
    with pytest.raises(
        MetropolisError, match=r"calls\.jsonl, line \d+: is damaged \(it ends here\)"
    ):
        side.chunk("call", f"{side.timeline.calls - 1}")
    (run_copy / "checkpoints" / f"{STEPS}.json.gz").write_bytes(b"{}")
    with pytest.raises(MetropolisError, match="is damaged"):
        side.chunk("mind", f"0-{STEPS}")
    rmtree(run_copy)
    for name in ("positions", "moments"):
        with pytest.raises(MetropolisError, match="has the folder been removed"):
            side.chunk(name, "0")
    with pytest.raises(MetropolisError, match="has the folder been removed"):
        side.refresh()
