"""`metropolis plan show`: examples, schedules, runs, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metropolis.plan import comparison
from metropolis.plan.application_file import read_application
from metropolis.plan.comparison import compare
from metropolis.plan.schedule import (
    Schedule,
    ScheduleStage,
    StageNode,
    read_schedule,
    read_schedules,
    write_schedule,
)
from metropolis.plan.search.methods import METHODS, search
from metropolis.plan.simulated_run import simulate_run
from metropolis.plan.timeline import Boundary, Timeline
from metropolis.plan.workload import columns_of, drawn
from metropolis.types import MetropolisError
from tests.commands import Command

ROOT = Path(__file__).parents[2]
ENSEMBLE, CHAIN = (
    str(ROOT / "examples" / f"{name}.toml") for name in ("ensemble", "chain_summary")
)
PAGE = (ROOT / "docs" / "plan.md").read_text()


@pytest.fixture
def show(metropolis: Command) -> Command:
    """Run `metropolis plan show …`."""
    return partial(metropolis, "plan", "show")


def as_json(show: Command, *arguments: str | Path) -> dict[str, Any]:
    status, out, err = show(*arguments, "--json")
    assert (status, err) == (0, "")
    content: dict[str, Any] = json.loads(out)
    return content


@pytest.mark.parametrize(
    ("path", "methods"), [(ENSEMBLE, ("min-no-preemption", "max")), (CHAIN, METHODS)]
)
def test_an_example_is_planned(show: Command, path: str, methods: tuple[str, ...]) -> None:
    chosen = [] if methods == METHODS else [f"--method={method}" for method in methods]
    content = as_json(show, path, "--draws", "3", *chosen)
    assert [each["method"] for each in content["methods"]] == list(methods)
    loaded = read_application(Path(path))
    requests = loaded.application.requests()
    assert {each["node"]: each["requests"] for each in content["nodes"]} == {
        name: len(each) for name, each in requests.items()
    }
    for method in content["methods"]:
        schedule = msgspec.convert(method["schedule"], Schedule)
        assert schedule.ends_s == method["estimate_s"]
        finished = [name for s in schedule.stages for name, n in s.nodes.items() if n.finishes]
        assert sorted(finished) == sorted(requests)
        low, high = method["simulated_p10_s"], method["simulated_p90_s"]
        assert low <= method["simulated_mean_s"] <= high
    estimates = {each["method"]: each["estimate_s"] for each in content["methods"]}
    assert estimates[methods[0]] == min(estimates.values())


def test_the_text_has_the_graph_the_stages_a_chart_and_the_methods(show: Command) -> None:
    status, out, err = show(CHAIN, "--draws", "2", "--method", "max", "--method", "greedy")
    assert (status, err) == (0, "")
    assert "chain_summary on 4 x a100-80g. All times but those of the search are simulated." in out
    assert re.search(r"summary +vicuna-13b +documents \(chain\) +109 ", out)
    assert re.search(r"judge +llama-2-70b +documents \+ summary +72 ", out)
    assert re.search(r"The schedule of max:\n", out)
    assert re.search(r"0\.0 +[\d.]+ +summary +vicuna-13b +\d x \d +0", out)
    assert len(re.findall(r"^GPU \d │[░AB·]+│$", out, re.MULTILINE)) == 4
    assert re.search(r"^max +2 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +1\.\d\d", out, re.MULTILINE)
    assert re.search(r"^greedy +2 .* 1\.00", out, re.MULTILINE)
    assert not re.search(r"^ours", out, re.MULTILINE)


def test_the_name_of_an_application_is_printed_as_it_is(show: Command, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    own = Path(ENSEMBLE).read_text().replace('"ensemble"', '":smile: \\u001b[2J"')
    path.write_text(own.replace("questions.jsonl", f"{ROOT / 'examples/questions.jsonl'}"))
    printed = show(path, "--draws", "0", "--method", "max").result
    assert printed.startswith(r":smile: \x1b[2J on ")


def test_a_schedule_is_written_and_shown(show: Command, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    content = as_json(show, CHAIN, "--draws", "0", "--method", "min", "--out", out)
    schedule = read_schedule(out, "chain_summary")
    written = json.loads(msgspec.json.encode(schedule))
    assert written == content["methods"][0]["schedule"]
    assert content["methods"][0]["simulated_mean_s"] is None
    shown = as_json(show, out)
    assert shown == {"application": "chain_summary", "min, estimate": written}
    assert re.search(r"chain_summary, min, estimate:\n", show(out)[1])
    usual = tmp_path / "usual"
    usual.touch()
    assert out.stat().st_mode == usual.stat().st_mode


def test_a_run_is_shown_below_its_plan(show: Command, tmp_path: Path) -> None:
    loaded = read_application(Path(CHAIN))
    _, (result,) = compare(loaded, ["min"], 0, 0)
    columns, random = columns_of(loaded.application), np.random.default_rng(5)
    workload = drawn(columns, loaded.lengths, loaded.machine.shapes, random)
    actual = simulate_run(Timeline(loaded.machine, workload), result.schedule)
    assert actual.ends_s != result.schedule.ends_s
    record = {"application": "chain_summary", "planned": result.schedule, "actual": actual}
    (tmp_path / "run.json").write_bytes(msgspec.json.encode({**record, "elapsed_s": 3.0}))
    status, out, _ = show(tmp_path, "--figures", tmp_path / "figures")
    assert status == 0
    titles = re.findall(r"^(planned, estimate|actual): [\d.]+ s$", out, re.MULTILINE)
    assert titles == ["planned, estimate", "actual"]
    assert (tmp_path / "figures" / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figures" / "gantt.svg").read_text()


REFUSED = {
    "no.toml cannot be read": ("no.toml",),
    "--draws is for applications": ("schedule.json", "--draws", "3"),
    "--method is for applications": ("schedule.json", "--method", "max"),
    "schedule.json cannot be read": ("schedule.json",),
    "run.json cannot be read": (".",),
    "'best' is not one of 'ours', 'greedy'": (CHAIN, "--method", "best"),
    "cannot be written (its folder does not exist)": (CHAIN, "--out", "no/schedule.json"),
    "is read as input": (CHAIN, "--out", CHAIN),
    "is a file; it should be the path of a folder": (CHAIN, "--figures", CHAIN),
    "cannot hold figures": (CHAIN, "--figures", f"{CHAIN}/figures"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_faults_end_in_a_sentence(
    show: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = show(*REFUSED[sentence])
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["app.toml", "items.jsonl", "lengths.json", "own.toml"])
def test_no_file_of_the_application_is_overwritten(
    show: Command, tmp_path: Path, name: str
) -> None:
    (tmp_path / "items.jsonl").write_text('{"text": "Why?"}')
    (tmp_path / "lengths.json").write_text('{"mpt-7b": [3]}')
    (tmp_path / "own.toml").write_text(
        "[x]\nsource = 'x'\nw_ms = 9\ng_ms = 1\nh_ms = 1\nb_ms = 0\nk_ms = 0\nq_ms = 0\nc_ms = 0\n"
        "kv_capacity_tokens = 100_000"
    )
    (tmp_path / "app.toml").write_text(
        "name = 'a'\n[sources.s]\nfile = 'items.jsonl'\n[nodes.n]\nmodel = 'mpt-7b'\ninputs = 's'\n"
        "[lengths.mpt-7b]\nfile = 'lengths.json'\n[models.mpt-7b.profiles]\n1 = 'own.toml/x'"
    )
    content = (tmp_path / name).read_text()
    (tmp_path / "link").symlink_to(tmp_path / name)
    options = ("--method", "min", "--draws", "0", "--out")
    assert show(tmp_path / "app.toml", *options, tmp_path / "schedule.json").result
    assert "is read as input" in show(tmp_path / "app.toml", *options, tmp_path / "link").refusal
    assert (tmp_path / name).read_text() == content


def test_runs_with_known_lengths_are_the_estimate(tmp_path: Path) -> None:
    """Runs with unknown lengths have different durations, which the seed determines."""
    text = """
    name = "known"
    [machine]
    gpus = 2
    [sources.s]
    count = 30
    tokens = [5, 50]
    {known}
    [nodes.n]
    model = "mpt-7b"
    inputs = "s"
    [nodes.k]
    model = "chatglm3-6b"
    inputs = "s"
    [lengths.mpt-7b]
    values = [3, 300]
    [lengths.chatglm3-6b]
    values = [3, 300]
    """
    path = tmp_path / "app.toml"
    path.write_text(text.format(known="output_tokens = [3, 300]"))
    _, (result,) = compare(read_application(path), ["greedy"], 3, 0)
    assert result.runs_s == (result.schedule.ends_s,) * 3
    path.write_text(text.format(known=""))
    runs = [compare(read_application(path), ["greedy"], 3, seed)[1][0].runs_s for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 3


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_damaged_schedule_ends_in_a_sentence(
    tmp_path: Path, show: Command, data: st.DataObject
) -> None:
    """A damaged schedule is refused in one sentence, or it can be drawn."""
    path = tmp_path / "schedule.json"
    if not (tmp_path / "whole").exists():
        show(CHAIN, "--draws", "0", "--method", "min", "--out", path)
        path.rename(tmp_path / "whole")
    whole = (tmp_path / "whole").read_text()
    numbers = list(re.finditer(r"-?\d+(\.\d+)?", whole))
    for _ in range(data.draw(st.integers(1, 2))):
        found = data.draw(st.sampled_from(numbers))
        number = data.draw(st.sampled_from(["-1", "0", "1", "1e300", "1e999", "63", "64", "null"]))
        whole = whole[: found.start()] + number.ljust(len(found[0])) + whole[found.end() :]
    path.write_text(whole)
    try:
        read_schedules(path)
    except MetropolisError:
        return
    assert show(path)[0] == 0


def test_how_a_stage_ends_is_told(show: Command, tmp_path: Path) -> None:
    """By a node that finishes, or one with few open requests; a reloaded node is told as such."""

    def node(gpu: int, loads: bool, finishes: bool) -> StageNode:
        return StageNode(1, 1, ((gpu,),), loads, 1.0, finishes)

    first = {"a": node(0, True, False), "b": node(1, True, False), "c": node(2, True, False)}
    second = {"a": node(0, False, True), "c": node(2, False, False)}
    stages = (ScheduleStage(0.0, 2.0, first, Boundary("b", 1500)), ScheduleStage(2.0, 3.0, second))
    path = tmp_path / "schedule.json"
    write_schedule(path, "app", Schedule("ours", stages))
    rows = [line.split() for line in show(path)[1].splitlines()]
    assert ["b", "1", "x", "1", "1", "1.0", "1,500", "open"] in rows
    assert ["2.0", "3.0", "a", "1", "x", "1", "0", "finished"] in rows
    assert ["1", "continues"] in rows


@pytest.mark.parametrize(("dp", "tp", "gpus"), [(-1, 1, ()), (0, 1, ()), (1, 0, ((),))])
def test_a_plan_without_gpus_is_refused(
    tmp_path: Path, dp: int, tp: int, gpus: tuple[tuple[int, ...], ...]
) -> None:
    """A node whose number of GPUs differs from that of its plan is refused."""
    node = StageNode(dp, tp, gpus, True, 1.0, True)
    path = tmp_path / "schedule.json"
    write_schedule(path, "app", Schedule("by hand", (ScheduleStage(0.0, 1.0, {"n": node}),)))
    with pytest.raises(MetropolisError, match="stage 1: 'n' has the plan"):
        read_schedules(path)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("gpus", [[0], [64]], "'n' has the GPU 64, which is not in [0, 63]"),
        ("gpus", [[0], [-1]], "'n' has the GPU -1, which is not in [0, 63]"),
        ("gpus", [[1], [1]], "the GPU 1 of 'n' is used twice"),
        ("gpus", [[*range(50_000)], []], "gpus dp lists of tp GPUs"),
        ("dp", 3, "'n' has the plan dp3 tp1; its dp and tp should be"),
        ("dp", 10**9, "'n' has the plan dp1000000000 tp1; its dp and tp should be"),
        ("loaded_s", -1.0, "'n' is loaded at -1.0 s"),
        ("loaded_s", 1e300, "'n' is loaded at 1e+300 s"),
        ("boundary", ["n", -1], "ends at -1 open requests"),
        ("nodes", {"\x1b[2J": None}, "'\\x1b[2J' is not the name of a node"),
        ("ends_s", 4.0, "lasts from 5.0 to 4.0 s"),
        ("ends_s", 1e300, "lasts from 5.0 to 1e+300 s"),
        ("begins_s", -1.0, "lasts from -1.0 to 9.0 s; it should begin at 0.0 s or later"),
    ],
)
def test_an_impossible_stage_is_named(
    tmp_path: Path, field: str, value: Any, sentence: str
) -> None:
    node = StageNode(2, 1, ((0,), (1,)), True, 6.0, True)
    content = msgspec.to_builtins(Schedule("max", (ScheduleStage(5.0, 9.0, {"n": node}),)))
    path = tmp_path / "schedule.json"
    record = {"application": "app", "schedule": content}
    path.write_bytes(msgspec.json.encode(record))
    assert list(read_schedules(path)[1]) == ["max, estimate"]
    (stage,) = content["stages"]
    if field == "nodes":
        value = dict.fromkeys(value, stage["nodes"]["n"])
    (stage if field in stage else stage["nodes"]["n"])[field] = value
    path.write_bytes(msgspec.json.encode(record))
    with pytest.raises(MetropolisError, match=r"schedule\.json: stage 1") as caught:
        read_schedules(path)
    assert sentence in f"{caught.value}"


def test_the_commands_and_files_of_the_page_work(
    show: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(comparison, "search", partial(search, effort=100_000))
    commands = re.findall(r"^ {4}metropolis plan show (.*)$", PAGE, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        arguments = shlex.split(command.replace("/tmp/", f"{tmp_path}/"))
        status, _, err = show(*arguments)
        assert (status, err) == (0, ""), command
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        read_application(path)
