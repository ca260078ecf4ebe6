"""The running phase with stub servers as engines: real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_struct

from metropolis.llm.backends import wire
from metropolis.llm.base import Completion, UnreachableError
from metropolis.llm.journal import read_journal
from metropolis.plan.application import Application
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.running import runner as runner_module
from metropolis.plan.running.engine import Sampling, call_of
from metropolis.plan.running.folder import RunFolder, RunRecord, read_run
from metropolis.plan.running.model_copy import EngineOptions
from metropolis.plan.running.runner import Runner
from metropolis.plan.schedule import Schedule
from metropolis.plan.timeline import Boundary
from metropolis.types import MetropolisError
from tests.plan.small_runs import (
    APPLICATION,
    REQUESTS,
    SAMPLING,
    SCHEDULE,
    asked,
    asked_by_gpus,
    run_small,
    schedule,
    stub,
)


def answers_in(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "out" / "answers.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_answers(folder: Path) -> None:
    """Every request is answered exactly once, and the answers are in order."""
    every = [(name, index) for name, count in REQUESTS.items() for index in range(count)]
    answers = answers_in(folder)
    assert sorted((each["node"], each["index"]) for each in answers) == sorted(every)
    by_node: dict[object, list[object]] = {}
    for each in answers:
        by_node.setdefault(each["node"], []).append(each["index"])
    assert all(indices == sorted(indices) for indices in by_node.values())  # type: ignore[type-var]
    keys = [(key.function, key.occurrence) for key, _ in read_journal(folder / "out/journal.jsonl")]
    assert sorted(keys) == sorted(every)


def check_copies(folder: Path, record: RunRecord) -> None:
    """Requests went to the copies of their node: two nodes share a model."""
    places: dict[str, set[str]] = {}
    for stage in record.actual.stages:
        assert stage.begins_s <= stage.ends_s
        for name, node in stage.nodes.items():
            places.setdefault(name, set()).update(",".join(map(str, c)) for c in node.gpus)
    by_gpus = asked_by_gpus(folder)
    for gpus, calls in by_gpus.items():
        assert all(gpus in places[name] for name, _ in calls)
    counts = [sum(call[0] == "one" for call in by_gpus[gpus]) for gpus in "23"]
    assert min(counts) > 0  # the first copy to answer does not take all


def test_an_application_runs_to_its_end(tmp_path: Path) -> None:
    record, logged = run_small(tmp_path, stub(tmp_path, mean_ms=150))
    check_answers(tmp_path)
    check_copies(tmp_path, record)
    assert set(asked(tmp_path).values()) == {1}
    assert record.is_complete
    assert {name: node.requests for name, node in record.nodes.items()} == REQUESTS
    assert all(node.sent_again == 0 for node in record.nodes.values())
    assert read_run(tmp_path / "out") == record
    assert answers_in(tmp_path)[0] == {
        "node": "one", "key": "q0", "index": 0, "prompt_tokens": 12, "output_tokens": 6,
        "text": answers_in(tmp_path)[0]["text"],
    }  # fmt: skip
    begun = [line for line in logged if line.startswith("stage ")]
    assert len(begun) == len(logged) == len(record.actual.stages)
    assert "loads" in begun[0]


def test_a_killed_engine_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "FAILURES_MAX", 1)  # the death is no failure of requests

    async def kill(runner: Runner) -> None:
        while runner.communicator.open_requests("two") > 8:
            await asyncio.sleep(0.01)
        copy = runner.running["two"].copies[0]
        assert copy.engine is not None
        while not in_flight & asked(tmp_path).keys():  # one has reached the engine
            await asyncio.sleep(0.001)
            in_flight.clear()
            in_flight.update(("two", index) for index in copy.in_flight)
        os.kill(copy.engine.pid, signal.SIGKILL)

    in_flight: set[tuple[str, int]] = set()
    options = EngineOptions(at_once=3)
    record, logged = run_small(tmp_path, stub(tmp_path, 50), options=options, meanwhile=kill)
    check_answers(tmp_path)
    again = {call for call, count in asked(tmp_path).items() if count > 1}
    assert again
    assert again <= in_flight
    assert len(again) <= record.nodes["two"].sent_again <= len(in_flight) == 3
    died = [line for line in logged if "ended" in line]
    assert len(died) == 1
    assert died[0].startswith("two, copy 1 on GPU 0, 1: its engine ended with exit code -9; it is ")
    assert re.search(r"and [123] in flight are sent again; log: ", died[0])
    assert (tmp_path / "out/engines/two-1.log").stat().st_mode & 0o077 == 0  # commands have keys


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("/bin/false {port}", "lost 3 times in a row without an answer; the last one ended with"),
        ("/bin/sh -c 'echo lost; exit 7' {port}", r"with exit code 7; log: .*-\d\.log: lost"),
        ("no-such-engine {port}", "'no-such-engine', the command of engines of .* cannot be star"),
    ],
)
def test_an_engine_that_cannot_start_is_one_sentence(
    tmp_path: Path, command: str, sentence: str
) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        run_small(tmp_path, command)
    record = read_run(tmp_path / "out")
    assert not record.is_complete
    assert len(record.actual.stages) == 1


def test_an_engine_that_does_not_answer_in_time_is_one_sentence(tmp_path: Path) -> None:
    options = EngineOptions(wait_s=0.2)
    with pytest.raises(MetropolisError, match=r"within 0\.2 s \(.* refused\); allow more with"):
        run_small(tmp_path, "sleep 60 {port}", options=options)


def test_an_engine_without_models_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the missing model, although the engine could not be reached at first."""
    known: set[object] = set()

    async def models_of(server: object, _path: str) -> list[str]:
        if server in known:
            return []
        known.add(server)
        raise UnreachableError("refused")

    monkeypatch.setattr(wire, "models_of", models_of)
    with pytest.raises(MetropolisError, match=r"within 0\.2 s \(it lists no model\)"):
        run_small(tmp_path, "sleep 60 {port}", options=EngineOptions(wait_s=0.2))


PREEMPTING = schedule(
    {"one": ((2,),), "summary": ((0,),)}, {"two": ((2,),), "summary": ((0, 1),)}, {"judge": ((0,),)}
)
"""A schedule in which `summary` is interrupted and continued with more GPUs."""


def stub_of_summary(folder: Path, mean_ms: float) -> str:
    """A stub whose copies on one GPU answer after that time, and others at once."""
    latency = f"$([ {{tp}} = 1 ] && echo {mean_ms} || echo 0)"
    return f"/bin/sh -c 'exec {stub(folder, 0).replace('-ms 0', f'-ms {latency}')}'"


@pytest.mark.parametrize(("mean_ms", "drain_s", "again"), [(60_000, 0.1, 2), (300, 60.0, 0)])
def test_a_preempted_node_continues_with_its_new_plan(
    tmp_path: Path, mean_ms: float, drain_s: float, again: int
) -> None:
    """Requests in flight may be answered while the copy drains; then they are sent again."""

    async def open_gate(runner: Runner) -> None:
        while not (node := runner.running.get("summary")) or len(node.copies[0].in_flight) < 2:
            await asyncio.sleep(0.01)
        (tmp_path / "gate").touch()

    commands = dict.fromkeys(APPLICATION.models, stub(tmp_path))
    commands["alpaca-13b"] = stub_of_summary(tmp_path, mean_ms)
    waiting = f"until [ -e {tmp_path}/gate ]; do sleep 0.02; done"
    commands["vicuna-13b"] = f"/bin/sh -c '{waiting}; exec {stub(tmp_path)}'"
    options = EngineOptions(at_once=2, drain_s=drain_s)
    record, _ = run_small(tmp_path, commands, PREEMPTING, options, open_gate)
    check_answers(tmp_path)
    stages = record.actual.stages
    plans = [each.nodes["summary"].plan for each in stages if "summary" in each.nodes]
    assert plans[:2] == [ExecutionPlan(1, 1), ExecutionPlan(1, 2)]
    assert record.nodes["summary"].sent_again == again
    assert sum(asked(tmp_path).values()) == sum(REQUESTS.values()) + again


def test_a_stage_ends_at_its_boundary(tmp_path: Path) -> None:
    """`one` is interrupted for a plan with more GPUs when it has four requests left."""
    planned = schedule({"one": ((0,),)}, {"one": ((0,), (1,)), "two": ((2,),)}, {"judge": ((0,),)})
    bounded = replace_struct(planned.stages[0], boundary=Boundary("one", 4))
    planned = Schedule("by hand", (bounded, *planned.stages[1:]))
    planned = Schedule("by hand", (*planned.stages, *schedule({"summary": ((3,),)}).stages))
    options = EngineOptions(at_once=1)
    record, logged = run_small(tmp_path, stub(tmp_path, 5), planned, options)
    check_answers(tmp_path)
    first, second = record.actual.stages[:2]
    assert first.boundary == Boundary("one", 4)
    assert not first.nodes["one"].finishes
    assert second.nodes["one"].plan == ExecutionPlan(2, 1)
    assert "one has 4 requests left; one dp2 tp1 on GPUs 0 1 (loads); two" in logged[1]


def test_a_node_may_finish_while_its_copy_drains(tmp_path: Path) -> None:
    """The node ends within the stage that is ending; no engine is started for it again."""
    planned = schedule({"one": ((0,),)}, {"one": ((0, 1),)}, {"two": ((0,),), "summary": ((1,),)})
    stages = (*planned.stages, *schedule({"judge": ((0,),)}).stages)
    bounded = replace_struct(stages[0], boundary=Boundary("one", 4))
    options = EngineOptions(at_once=4)
    planned = Schedule("by hand", (bounded, *stages[1:]))
    record, logged = run_small(tmp_path, stub(tmp_path, 100), planned, options)
    check_answers(tmp_path)
    first, second, *_ = record.actual.stages
    assert first.nodes["one"].finishes
    assert second.nodes.keys() == {"two", "summary"}
    assert "stage 2" in logged[1]
    assert "one has finished (planned: 2.0 s); two dp1 tp1 on" in logged[1]
    assert not (tmp_path / "0,1.log").exists()
    ends = [name for stage in record.actual.stages for name, n in stage.nodes.items() if n.finishes]
    assert sorted(ends) == sorted(REQUESTS)


def test_a_run_in_the_folder_is_continued(tmp_path: Path) -> None:
    """What was answered is not asked again; another application or sampling is refused."""
    run_small(tmp_path, stub(tmp_path))
    first = (tmp_path / "out/answers.jsonl").read_bytes()
    journal = (tmp_path / "out/journal.jsonl").read_bytes().splitlines(keepends=True)
    kept = len(journal) // 2
    (tmp_path / "out/journal.jsonl").write_bytes(b"".join(journal[:kept]) + b'{"line":')
    record, _ = run_small(tmp_path, stub(tmp_path), None)
    assert (tmp_path / "out/answers.jsonl").read_bytes() == first
    assert sorted(asked(tmp_path).values()) == [1] * (kept - 1) + [2] * (len(journal) - kept)
    assert record.is_complete


def test_a_run_is_continued_without_the_logs_of_its_engines(tmp_path: Path) -> None:
    RunFolder(tmp_path / "out", APPLICATION, SAMPLING, SCHEDULE).close()
    (tmp_path / "out/engines").rmdir()
    record, _ = run_small(tmp_path, stub(tmp_path), None)
    assert record.is_complete


def test_a_run_is_continued_in_its_stage(tmp_path: Path) -> None:
    """Stages whose end has come, at a finished node or a boundary, do not begin again."""
    first, second, third, last = schedule(
        {"one": ((0,),), "two": ((1,),)},
        {"two": ((1, 2),), "summary": ((0,),)},
        {"two": ((0, 1, 2, 3),)},
        {"summary": ((0,),), "judge": ((1,),)},
    ).stages
    second = replace_struct(second, boundary=Boundary("two", 6))
    planned = Schedule("by hand", (first, second, third, last))
    with closing(RunFolder(tmp_path / "out", APPLICATION, SAMPLING, planned)) as folder:
        calls = [("one", index) for index in range(12)] + [("two", index) for index in range(6)]
        for name, index in calls:
            call = call_of(APPLICATION.node(name), index, "", 100, SAMPLING)
            folder.put(call, Completion("yes", 1, 1, "stop"))
    record, _ = run_small(tmp_path, stub(tmp_path), None)
    check_answers(tmp_path)
    assert {name: each.plan for name, each in record.actual.stages[0].nodes.items()} == {
        "two": ExecutionPlan(1, 4)
    }


@pytest.mark.parametrize(
    ("application", "sampling"),
    [
        (replace(APPLICATION, nodes=APPLICATION.nodes[:2]), SAMPLING),
        (APPLICATION, Sampling(seed=1)),
        (APPLICATION, Sampling(temperature=0.5)),
    ],
    ids=["application", "seed", "temperature"],
)
def test_answers_of_another_run_are_not_used(
    tmp_path: Path, application: Application, sampling: Sampling
) -> None:
    RunFolder(tmp_path, APPLICATION, SAMPLING, SCHEDULE).close()
    with pytest.raises(MetropolisError, match="holds answers to another application"):
        RunFolder(tmp_path, application, sampling, SCHEDULE)


def test_answers_of_other_weights_are_not_mixed(tmp_path: Path) -> None:
    """A path may be corrected as long as nothing was answered."""
    with closing(RunFolder(tmp_path, APPLICATION, SAMPLING, SCHEDULE)) as folder:
        folder.use_paths({"one": "/old", "two": "/old"})
        folder.put(call_of(APPLICATION.node("one"), 0, "", 9, SAMPLING), Completion("a", 1, 1, ""))
    with closing(RunFolder(tmp_path, APPLICATION, SAMPLING, None)) as folder:
        folder.use_paths({"one": "/old", "two": "/new"})
        with pytest.raises(MetropolisError, match=r"answers of one by the model in /old, .* /new"):
            folder.use_paths({"one": "/new"})


def test_a_folder_is_used_by_one_process(tmp_path: Path) -> None:
    with (
        closing(RunFolder(tmp_path, APPLICATION, SAMPLING, SCHEDULE)),
        pytest.raises(MetropolisError, match="is in use by another run"),
    ):
        RunFolder(tmp_path, APPLICATION, SAMPLING, None)
    RunFolder(tmp_path, APPLICATION, SAMPLING, None).close()


def test_a_record_without_a_node_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path, APPLICATION, SAMPLING, SCHEDULE).close()
    record = json.loads((tmp_path / "run.json").read_text())
    del record["nodes"]["judge"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(MetropolisError, match="lacks the nodes judge; restore the file"):
        RunFolder(tmp_path, APPLICATION, SAMPLING, None)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"crc32":1,"world":"minimal"}', b'{"format":"\xff"}']
)
def test_other_folders_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(MetropolisError, match="not the folder of a `metropolis plan run`"):
        RunFolder(tmp_path, APPLICATION, SAMPLING, SCHEDULE)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_damaged_stages_are_refused(tmp_path: Path) -> None:
    """Without copies, a node would never finish."""
    RunFolder(tmp_path, APPLICATION, SAMPLING, SCHEDULE).close()
    content = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(content.replace('"dp": 2', '"dp": 0'))
    with pytest.raises(MetropolisError, match="stage 1: 'one' has the plan dp0 tp1"):
        RunFolder(tmp_path, APPLICATION, SAMPLING, None)


@pytest.mark.parametrize(
    ("planned", "sentence"),
    [
        (schedule({"one": ((0,),)}), "no stage of the schedule runs judge, summary, two"),
        (schedule({"other": ((0,),)}), "stage 1 of the schedule runs 'other'; small has no such"),
        (schedule({"one": ((0, 1, 2, 3),), "two": ((4,),)}), "stage 1 .* not fit on 4 GPUs"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(
    tmp_path: Path, planned: Schedule, sentence: str
) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        run_small(tmp_path, stub(tmp_path), planned)
    assert not [*tmp_path.glob("*.log")]
