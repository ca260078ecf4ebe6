"""`metropolis run` and `resume` from the command line: complete, stopped, and resumed runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from math import nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metropolis.bench import METROPOLIS
from metropolis.bench.stub_server import stub_server
from metropolis.runtime.folder.history import read_history, record_of
from tests.cli.conftest import summary
from tests.commands import Command
from tests.forgery import forge

ROOT = Path(__file__).parent.parent.parent
STEPS = 24


def test_every_mode_has_the_same_history_and_says_so(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    assert uninterrupted["steps"] == STEPS
    assert uninterrupted["simulated"] is True
    assert uninterrupted["stopped"] is None
    for options in (("--mode", "lockstep"), ("--mode", "sequential"), ("--rule", "conservative")):
        other = summary(run, "meadow.py", *options)
        for field in ("history_sha256", "calls", "prompt_tokens", "output_tokens", "usage"):
            assert other[field] == uninterrupted[field], (options, field)
    history = read_history(Path("uninterrupted/history.jsonl"))
    assert [record_of(line.content).step for line in history] == list(range(STEPS))
    used = uninterrupted["usage"].values()
    assert sum(of["calls"] for of in used) == uninterrupted["calls"] > 0
    assert sum(of["output_tokens"] for of in used) == uninterrupted["output_tokens"]


def test_instances_may_differ_and_be_others_after_a_resume(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    fleet = ("--instance", "llama-3-8b/l4", "--instance", "llama-3-8b/h100")
    some = summary(run, "meadow.py", "--steps", "9", "--out", "differ", *fleet)
    assert some["fleet"] == "1 x llama-3-8b/l4 + 1 x llama-3-8b/h100"
    assert (some["instances"], some["profile"]) == (2, "llama-3-8b/l4,llama-3-8b/h100")
    slow = summary(run, "meadow.py", "--steps", "9", "--instances", "2")
    assert some["makespan_s"] < slow["makespan_s"]
    kept = summary(run, "resume", "differ", "--steps", "15")
    assert kept["fleet"] == some["fleet"]
    changed = summary(run, "resume", "differ", "--steps", f"{STEPS}", "--instances", "3")
    assert changed["fleet"] == "3 x llama-3-8b/l4"
    assert changed["history_sha256"] == uninterrupted["history_sha256"]


def test_the_seed_and_the_agents_count(run: Command, uninterrupted: dict[str, Any]) -> None:
    other = summary(run, "meadow.py", "--seed", "1", "--agents", "4")
    assert (other["agents"], other["seed"]) == (4, 1)
    assert other["history_sha256"] != uninterrupted["history_sha256"]


def test_people_read_a_story_and_a_table_in_80_columns(run: Command) -> None:
    status, out, err = run("meadow.py")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert any(re.match(r"00:0\d  w0\d shouts hey \d", line) for line in lines)
    for mode in ("sequential", "lockstep", "out_of_order", "oracle", "oracle_values"):
        assert any(line.startswith(mode) for line in lines)
    assert max(map(len, lines)) <= 80
    assert "latency is simulated" in " ".join(lines)
    quiet = run("meadow.py", "--quiet")[1]
    assert "shouts" not in quiet
    assert {path.name for path in Path("runs").iterdir()} == {"meadow-1", "meadow-2"}
    names = ("run.json", "history.jsonl", "calls.jsonl", "journal.jsonl", "trace.parquet")
    for name in names:
        assert Path("runs/meadow-1", name).exists()


def test_a_finished_run_goes_on(run: Command, uninterrupted: dict[str, Any]) -> None:
    assert summary(run, "meadow.py:make", "--hours", "0.02")["steps"] == 8  # 10 s each
    longer = summary(run, "resume", "--steps", str(STEPS))
    assert longer["history_sha256"] == uninterrupted["history_sha256"]
    assert longer["calls"] == uninterrupted["calls"]
    for arguments in (
        ("resume", "runs/meadow-1", "--mode", "lockstep"),
        ("resume", "meadow-1"),
        ("--resume", "meadow-1"),
        ("meadow.py:make", "--resume"),
    ):
        again = summary(run, *arguments)
        assert again["out"] == "runs/meadow-1"
        assert again["mode"] == "lockstep"
        assert again["history_sha256"] == uninterrupted["history_sha256"]
        assert again["usage"] == uninterrupted["usage"]


def test_a_resumed_run_keeps_the_steps_that_are_recorded(run: Command) -> None:
    summary(run, "meadow.py", "--steps", "6", "--out", "it")
    for file in Path("it/checkpoints").iterdir():
        file.unlink()  # as of a run that was killed before its first checkpoint
    before = Path("it/history.jsonl").read_bytes()
    status, out, err = run("resume", "it", "--steps", "4")
    assert (status, out) == (2, "")
    assert err == "metropolis: the run has already reached step 6; it cannot end at 4\n"
    assert Path("it/history.jsonl").read_bytes() == before
    assert summary(run, "resume", "it", "--steps", "7")["steps"] == 7


def test_options_that_were_edited_are_checked(run: Command) -> None:
    summary(run, "meadow.py", "--steps", "2")
    file = Path("runs/meadow-1/run.json")
    changes: tuple[tuple[object, str], ...] = (
        ("two", r".* `\$.steps`"),
        (-2, "-2 is not in the range 1<=x<=1000000000."),
        (nan, r".* `\$.steps`"),
    )
    for steps, sentence in changes:
        forge(file, lambda content, steps=steps: content["about"].update(steps=steps))
        status, out, err = run("resume", "runs/meadow-1", "--trust")
        assert (status, out) == (2, "")
        told = err.splitlines()[-1]
        assert re.fullmatch(rf"metropolis: runs/meadow-1/run.json: about: {sentence}", told), told


def test_a_damaged_run_says_so(run: Command) -> None:
    summary(run, "meadow.py", "--steps", "2")
    file, journal = Path("runs/meadow-1/run.json"), Path("runs/meadow-1/journal.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(b"{" + whole)
    status, out, err = run("resume", "meadow-1")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{journal}, line 1: is damaged" in err
    journal.write_bytes(whole)
    file.write_text(file.read_text()[:40])
    status, out, err = run("resume", "meadow-1")
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"metropolis: {file}: is damaged \(.*\); restore the file .*\n", err)


def test_an_error_of_ones_own_in_mid_run_is_mended_and_the_run_goes_on(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    world = Path("meadow.py")
    whole = world.read_text()
    world.write_text(whole.replace("    pass\n", "    1 / (record.step - 7)\n"))
    err = run("meadow.py", "--out", "here").refusal
    assert re.fullmatch(
        rf"metropolis: {world.resolve()}:12: ZeroDivisionError: [^;]*; fix it there; the run is "
        r"at step 8 of 24; continue with: metropolis resume here\n",
        err,
    ), err
    world.write_text(whole)
    assert summary(run, "resume", "here")["history_sha256"] == uninterrupted["history_sha256"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_it_goes_on(
    run: Command, uninterrupted: dict[str, Any], number: signal.Signals
) -> None:
    world = Path("interrupted.py")
    world.write_text(world.read_text().replace("signal.SIGINT", f"signal.{number.name}"))
    handler = signal.getsignal(number)
    status, _, err = run("interrupted.py", "--out", "here")
    assert status == 130
    said = re.fullmatch(
        r"metropolis: interrupted; the run is at step (\d+) of 24; continue with: "
        r"metropolis resume here\n",
        err,
    )
    assert said is not None, err
    assert 8 <= int(said[1]) < STEPS
    assert signal.getsignal(number) is handler
    assert Path("here/trace.parquet").exists()
    resumed = summary(run, "resume", "here", "--quiet")
    assert resumed["history_sha256"] == uninterrupted["history_sha256"]
    assert resumed["reused"] > 0


@pytest.mark.parametrize(
    ("budget", "larger"),
    [
        (("--max-tokens", "5000"), ("--max-tokens", "1000000")),
        (("--max-cost", "5", "--price-in", "1000", "--price-out", "2000"), ("--max-cost", "9e5")),
    ],
)
def test_a_budget_stops_a_run_and_a_larger_one_lets_it_go_on(
    run: Command, uninterrupted: dict[str, Any], budget: tuple[str, ...], larger: tuple[str, ...]
) -> None:
    status, out, err = run("meadow.py", *budget, "--out", "here", "--json", "--quiet")
    assert status == 3
    assert re.fullmatch(r"metropolis: the budget is exhausted: .*metropolis resume here\n", err)
    stopped = json.loads(out)
    assert 0 < stopped["steps"] < STEPS
    assert stopped["makespan_note"] == "including steps that are not in the history"
    journal = Path("here/journal.jsonl").read_text().splitlines()[1:]
    lines = [json.loads(line)["is"] for line in journal]
    answers = [line["completion"] for line in lines if "completion" in line]
    lost = [line["lost"] for line in lines if "lost" in line]  # cancelled at the end
    prompt = sum(answer["prompt_tokens"] for answer in answers) + sum(one[0] for one in lost)
    output = sum(answer["output_tokens"] for answer in answers) + sum(one[1] for one in lost)
    if budget[0] == "--max-tokens":
        assert prompt + output <= 5000
    else:
        assert prompt * 1000 + output * 2000 <= 5e6
    # the same budget is still exhausted
    status, _, err = run("resume", "here", "--quiet")
    assert (status, "the budget is exhausted" in err) == (3, True)
    assert Path("here/journal.jsonl").read_text().splitlines()[1:] == journal
    for _ in range(2):  # the second one has nothing left to do
        resumed = summary(run, "resume", "here", "--quiet", *larger)
        assert resumed["history_sha256"] == uninterrupted["history_sha256"]
        assert resumed["makespan_note"] == "which may lack the time of known answers"
    assert uninterrupted["makespan_note"] is None


def test_a_world_that_has_moved_is_named(run: Command) -> None:
    assert run("meadow.py", "--out", "here", "--quiet", "--steps", "3")[0] == 0
    Path("meadow.py").rename("heath.py")
    err = run("resume", "here").refusal
    assert re.fullmatch(
        r"metropolis: here: its world /.*/meadow.py does not exist; put it back there, or a link "
        r"to it\n",
        err,
    )
    Path("meadow.py").symlink_to("heath.py")
    assert run("resume", "here", "--steps", "4", "--quiet")[0] == 0


def test_a_journal_is_replayed(run: Command, uninterrupted: dict[str, Any]) -> None:
    for out, name in (("a", "uninterrupted/journal.jsonl"), ("b", "uninterrupted")):
        again = summary(run, "meadow.py", "--llm", f"replay:{name}", "--out", out)
        assert again["history_sha256"] == uninterrupted["history_sha256"]
        kept = json.loads(Path(f"{out}/run.json").read_text())["about"]["llm"]
        assert kept == f"replay:{Path('uninterrupted/journal.jsonl').resolve()}"
    err = run("meadow.py", "--llm", "replay:uninterrupted/journal.jsonl", "--seed", "3").refusal
    assert re.fullmatch(r"metropolis: .* has no answer to .*metropolis resume .*\n", err)
    # a run whose model has failed resumes with another
    resumed = summary(run, "resume", "--llm", "scripted")
    other = summary(run, "meadow.py", "--seed", "3")
    assert resumed["history_sha256"] == other["history_sha256"]


def test_a_server_is_asked(run: Command) -> None:
    with stub_server(0.0, 0) as url:
        live = summary(run, "minimal", "--llm", url, "--requests-per-minute", "100000")
    assert live["simulated"] is False
    assert live["makespan_s"] == pytest.approx(live["wall_s"], rel=0.5)
    assert live["prompt_tokens"] == 12 * live["calls"] > 0
    assert {row["mode"] for row in live["comparison"]} == {
        "sequential", "lockstep", "out_of_order", "oracle", "oracle_values"
    }  # fmt: skip


def test_a_profile_is_refused_before_the_run(run: Command) -> None:
    told = run("minimal", "--llm", "http://127.0.0.1:1", "--profile", "llama-3-8b/l5").refusal
    assert "llama-3-8b/l4" in told


def test_killed_at_any_moment_it_goes_on(run: Command, tmp_path: Path) -> None:
    options = ("--steps", "150", "--quiet", "--json")
    whole = summary(run, "meadow.py", *options, "--out", "whole")
    size = Path("whole/journal.jsonl").stat().st_size
    draw = Random(size)
    arguments = ["run", "meadow.py", "--out", "killed", "--checkpoint-minutes", "0.0005", *options]
    killed = 0
    for moment in sorted(draw.randrange(size) for _ in range(3)):
        killed += _kill_at(moment, arguments, tmp_path)
        arguments = ["resume", "killed"]
    assert killed
    resumed = summary(run, "resume", "killed", "--quiet")
    assert resumed["history_sha256"] == whole["history_sha256"]
    assert resumed["usage"] == whole["usage"]


def _kill_at(journal_bytes: int, arguments: list[str], folder: Path) -> bool:
    """Run, and kill -9 at that journal size; return whether the run was still alive."""
    process = subprocess.Popen(
        [*METROPOLIS, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]},
        stdout=subprocess.DEVNULL,
    )
    journal = folder / "killed" / "journal.jsonl"
    while process.poll() is None:
        if journal.exists() and journal.stat().st_size > journal_bytes:
            process.kill()
        time.sleep(0.002)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def test_an_estimate_is_what_the_run_takes(run: Command, uninterrupted: dict[str, Any]) -> None:
    prices = ("--price-in", "1", "--price-out", "3")
    found = summary(run, "meadow.py", "--estimate", *prices)
    assert found["rehearsed_steps"] == STEPS
    for field in ("calls", "prompt_tokens", "output_tokens"):
        assert found["total"][field] == uninterrupted[field]
    status, out, _ = run("meadow.py", "--estimate", *prices)
    assert (status, "Nothing was sent to a model" in " ".join(out.split())) == (0, True)
    assert not Path("runs").exists()


def test_a_dead_llm_ends_the_run_at_once(run: Command) -> None:
    for llm in ("http://127.0.0.1:9", "sglang:http://127.0.0.1:9", "openai:http://127.0.0.1:9"):
        status, out, err = run("meadow.py", "--llm", llm)
        assert (status, out) == (2, "")
        assert re.fullmatch(r"metropolis: [^\n]*127.0.0.1:9[^\n]* cannot be reached[^\n]*\n", err)
    assert not Path("runs").exists()


def test_the_end_of_a_long_run_is_compared(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.cli.run_report.COMPARED_ROWS", 6 * 12)
    status, out, _ = run("meadow.py", "--quiet")
    said = " ".join(out.split())
    assert status == 0
    assert "The same calls of the run's end, 2 min to 4 min, in every mode, simulated" in said
    assert summary(run, "meadow.py")["compared_from"] == STEPS - 12


def test_a_damaged_store_is_told_with_the_way_back(run: Command) -> None:
    whole = summary(run, "meadow.py", "--steps", "6", "--out", "whole")
    summary(run, "meadow.py", "--steps", "3", "--store", "embedded", "--out", "it")
    (log,) = Path("it/store/appendonlydir").glob("*.incr.aof")
    content = log.read_bytes()
    at = content.index(b'"bag":') + len(b'"bag":')
    log.write_bytes(content[:at] + b"%d" % (9 - int(content[at : at + 1])) + content[at + 1 :])
    status, out, err = run("resume", "it", "--steps", "6")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert f"{log.resolve()}: is damaged (its checksum does not fit)" in err
    assert "`metropolis resume RUN --store memory`" in err
    again = summary(run, "resume", "it", "--steps", "6", "--store", "memory")
    assert again["history_sha256"] == whole["history_sha256"]


def test_a_resumed_run_keeps_the_options_of_its_world(run: Command) -> None:
    town = ("smallville", "--agents", "2", "--quiet", "--json")
    option = ("--world-option", "preset=code-1.0")
    run(*town, *option, "--steps", "60", "--out", "half")
    found = [
        json.loads(run(*arguments)[1])["history_sha256"]
        for arguments in (
            ("resume", "half", "--steps", "720", "--quiet", "--json"),
            (*town, *option, "--steps", "720", "--out", "whole"),
            (*town, "--steps", "720", "--out", "paper"),
        )
    ]
    assert found[0] == found[1] != found[2]
