"""`metropolis plan run` as a command: kills, signals, resuming, and what it prints."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from metropolis.bench import METROPOLIS
from metropolis.plan.running.folder import read_run
from metropolis.plan.schedule import write_schedule
from tests.commands import Command
from tests.plan.small_runs import schedule, stub

ITEMS = 60
PATIENCE_S = 30.0
APPLICATION = """
name = "two"
machine.gpus = 4
[sources.questions]
file = "questions.jsonl"
[nodes.ask]
model = "vicuna-13b"
inputs = "questions"
[nodes.judge]
model = "chatglm3-6b"
inputs = "ask"
[lengths.vicuna-13b]
values = [20, 30]
[lengths.chatglm3-6b]
values = [20, 30]
[engines.vicuna-13b]
command = "stub"
"""
SCHEDULE = schedule({"ask": ((0,),)}, {"judge": ((0,), (1,))})


@pytest.fixture
def application(tmp_path: Path) -> Path:
    lines = [json.dumps({"key": f"q{n}", "text": f"question {n}"}) for n in range(ITEMS)]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "two.toml").write_text(APPLICATION)
    write_schedule(tmp_path / "schedule.json", "two", SCHEDULE)
    return tmp_path / "two.toml"


def arguments(application: Path, mean_ms: float, *more: str) -> list[str]:
    folder = application.parent
    return [
        str(application), "--out", str(folder / "out"), "--at-once", "4",
        "--schedule", str(folder / "schedule.json"),
        "--engine-command", stub(folder, mean_ms), *more,
    ]  # fmt: skip


@contextmanager
def running(application: Path, mean_ms: float, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process, from its twelfth answer on; afterwards no process is left."""
    command = [*METROPOLIS, "plan", "run", *arguments(application, mean_ms, *more)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        while lines(application, "answered") < 12:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        yield process
        process.kill()
    until_s = time.monotonic() + PATIENCE_S
    while (left := processes_with(str(application.parent))) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert left == []


def lines(application: Path, kind: str) -> int:
    logs = application.parent.glob("*.log")
    return sum(line.startswith(kind) for log in logs for line in log.read_text().splitlines())


def seeds(application: Path) -> list[str]:
    """The sampling seeds of the requests that arrived."""
    logs = application.parent.glob("*.log")
    every = (line.split() for log in logs for line in log.read_text().splitlines())
    return [seed for kind, _, seed in every if kind == "asked"]


def processes_with(text: str) -> list[str]:
    """The command lines that contain a text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        if text in line and int(file.parent.name) != os.getpid():
            found.append(line)
    return found


@pytest.fixture
def run(metropolis: Command) -> Command:
    """Run `metropolis plan run …`."""
    return partial(metropolis, "plan", "run")


def test_a_killed_run_is_continued_with_nothing_asked_twice(
    run: Command, application: Path
) -> None:
    """Only the requests in flight, whose answers had not arrived, are asked again."""
    with running(application, 100) as process:
        process.send_signal(signal.SIGKILL)
    kept = len((application.parent / "out/journal.jsonl").read_text().splitlines()) - 1
    assert 0 < kept < 2 * ITEMS
    record = json.loads(run(*arguments(application, 0, "--json")).result)
    asked = seeds(application)
    assert len({*asked}) == 2 * ITEMS
    assert len(asked) - 2 * ITEMS <= 4  # --at-once, of one copy
    assert record["nodes"]["judge"]["answered"] == ITEMS
    stages = record["actual"]["stages"]
    assert len(stages) == 3  # one was cut in two
    assert all(a["ends_s"] <= b["begins_s"] for a, b in pairwise(stages))
    assert stages[1]["begins_s"] > 0
    answers = (application.parent / "out/answers.jsonl").read_text().splitlines()
    assert len(answers) == 2 * ITEMS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_its_engines(application: Path, number: int) -> None:
    with running(application, 300) as process:
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    kept = len((application.parent / "out/journal.jsonl").read_text().splitlines()) - 1
    assert f"{kept} of {2 * ITEMS} answers are kept; the same command continues the run" in said
    assert said.splitlines()[-1] == "metropolis: interrupted"
    record = read_run(application.parent / "out")
    assert record.nodes["ask"].answered == kept
    assert record.nodes["ask"].sent_again in range(1, 5)  # in flight


def test_a_second_signal_ends_the_run_at_once(application: Path) -> None:
    """The run ends although an engine's process, which notes SIGTERM, does not end."""
    noted = application.parent / "noted"
    kept = f"trap 'touch {noted}' TERM; {stub(application.parent, 300)} & while :; do sleep 1; done"
    with running(application, 0, "--engine-command", f"sh -c {shlex.quote(kept)}") as process:
        process.send_signal(signal.SIGINT)
        while not noted.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert len(said.splitlines()) == 1  # that of the first stage


def test_it_prints_stages_and_counts(run: Command, application: Path) -> None:
    said = run(*arguments(application, 0))
    stages = said.err.splitlines()
    assert stages[0] == "stage 1 at 0.0 s: ask dp1 tp1 on GPUs 0 (loads)"
    assert "ask has finished (planned: 1.0 s); judge dp2 tp1 on GPUs 0 1 (loads)" in stages[1]
    assert len(stages) == 2
    assert "planned, estimate: 2.0 s" in said.out
    ends_s = max(stage.ends_s for stage in read_run(application.parent / "out").actual.stages)
    assert f"actual: {ends_s:,.1f} s" in said.out
    assert f"answers: {application.parent / 'out/answers.jsonl'}" in said.out.replace("\n", "")


def test_a_simulated_run_starts_no_engines(run: Command, application: Path) -> None:
    told = run(application, "--simulate", "--method", "greedy").result
    assert "simulated, with other output lengths: " in told
    content = json.loads(run(application, "--simulate", "--json").result)
    assert content["simulated"]["stages"]
    assert not (application.parent / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "name the folder of the run with --out, or give --simulate"),
        (("--out", "{}/out"), "no command starts engines of chatglm3-6b; write [engines.chatglm3"),
        (("--out", "{}/two.toml", "--engine-command", "stub"), "is a file; it should be the path"),
        (("--out", "{}/two.toml/it", "--engine-command", "stub"), "cannot be written"),
        (("--out", "{}/out", "--engine-command", ""), "lacks {port}"),
        (("--out", "{}/out", "--engine-command", "stub {{port}}"), "'stub', the command of engine"),
        (
            ("--out", "{}/out", "--engine-command", "stub", "--schedule", "{}/two.toml"),
            "; make it again with: metropolis plan show APP --out ",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    run: Command, application: Path, words: tuple[str, ...], sentence: str
) -> None:
    filled = (word.format(application.parent) for word in words)
    refusal = run(application, "--method", "max", *filled).refusal
    assert sentence in refusal.splitlines()[-1]


def test_a_method_is_for_a_new_schedule(run: Command, application: Path) -> None:
    words = application, "--out", application.parent / "out", "--engine-command", "stub"
    for method in (("--method", "min"), (), ("--method", "min")):  # the same command continues
        assert run(*words, *method).result
    refusal = run(*words, "--method", "max").refusal
    assert "--method is for a new schedule, and the run in" in refusal


def test_a_refused_schedule_is_not_kept(run: Command, application: Path) -> None:
    """Another attempt without the refused schedule makes a schedule itself."""
    write_schedule(application.parent / "schedule.json", "two", schedule({"ask": ((0,),)}))
    assert "no stage of the schedule runs judge" in run(*arguments(application, 0)).refusal
    assert not (application.parent / "out").exists()
    refusal = run(*arguments(application, 0, "--simulate")).refusal
    assert "no stage of the schedule runs judge" in refusal


def test_an_application_without_texts_makes_no_folder(run: Command, application: Path) -> None:
    (application.parent / "questions.jsonl").write_text('{"key": "q", "tokens": 5}\n')
    assert "has a number of tokens and no text" in run(*arguments(application, 1)).refusal
    assert not (application.parent / "out").exists()
