"""`metropolis fork` and `metropolis diff` from the command line."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from metropolis.runtime.live.simulation import Simulation
from tests.cli.conftest import summary
from tests.commands import Command
from tests.runtime.walkers import Meadow, Walker

STEPS = 24
PRESSED = """
import signal
from pathlib import Path
from metropolis import Scenario
from tests.runtime.walkers import Meadow, Walker, author

class Pressed(Walker):
    async def proceed(self, observation, llm):
        if self.step == 11 and Path("press").exists():
            Path("press").unlink()
            signal.raise_signal(signal.SIGINT)
        return await super().proceed(observation, llm)

def make(*, agents=None, seed=0):
    world = Meadow(6, side=9, joint=2)
    return Scenario(world, [Pressed(name) for name in world.names], author, steps=24)
"""
EDIT = """
def edit(moment):
    for agent in moment.agents.values():
        agent.memory.append("a flood")

def nothing(moment):
    pass

def wrong(moment):
    moment.entities.clear()

def of_nobody(moment):
    moment.agents["w99"].memory.append("a flood")

def of_all(moment):
    moment.agents = 3

def of_events(moment):
    moment.events = None

def of_none():
    pass
"""


def test_a_branch_without_a_difference_is_told_as_the_run(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    whole = run("meadow.py", "--out", "origin")[1]
    out = run("fork", "origin", "--at", "9", "--replay-llm").result
    told, told_again = (
        [line for line in text.splitlines() if "shouts" in line] for text in (whole, out)
    )
    assert 0 < len(told_again) < len(told)
    assert told[-len(told_again) :] == told_again
    said = f"A branch of {Path('origin').resolve()} from step 9 on, seed 0."
    assert said.replace(" ", "") in "".join(out.split())
    branch = summary(run, "resume", "meadow-1")
    assert branch["history_sha256"] == uninterrupted["history_sha256"]
    (origin,) = branch["lineage"]
    assert (origin["step"], origin["replay_llm"], origin["edit"]) == (9, True, None)
    assert run("diff", "origin", "meadow-1")[:2] == (
        0,
        "The 24 common steps of the runs are equal: all actions, changes and events.\n",
    )


def test_what_if(run: Command, uninterrupted: dict[str, Any]) -> None:
    Path("whatif.py").write_text(EDIT)
    how = ("--at", "9", "--edit", "whatif.py", "--seed", "4", "--mode", "lockstep")
    branch = summary(run, "fork", "uninterrupted", *how, "--replay-llm", "--quiet")
    assert branch["history_sha256"] != uninterrupted["history_sha256"]
    assert (branch["mode"], branch["seed"], branch["steps"]) == ("lockstep", 0, STEPS)
    (origin,) = branch["lineage"]
    assert (origin["edit"], origin["seed"]) == ("whatif.edit", 4)
    assert origin["edited"] == [f"w0{n}" for n in range(6)]
    parted = json.loads(run("diff", "uninterrupted", "meadow-1", "--json")[1])
    assert parted["steps"] == STEPS
    assert min(parted["since"].values()) >= 9
    assert parted["how"].keys() == parted["since"].keys()
    status, out, _ = run("diff", "uninterrupted", "runs/meadow-1")
    assert (status, max(map(len, out.splitlines())) <= 80) == (0, True)
    first = re.match(r"Equal up to step (\d+) \(00:0\d\);", out)
    assert first is not None
    assert int(first[1]) == min(parted["since"].values())
    for mark in "-+":
        assert re.search(rf"^\{mark} 00:0\d  w0\d shouts", out, re.MULTILINE)
    again = summary(run, "fork", "meadow-1", "--at", "12", "--replay-llm", "--quiet")
    assert again["history_sha256"] == branch["history_sha256"]
    assert [of["step"] for of in again["lineage"]] == [9, 12]


CLOCK = """
from metropolis import Entity, Scenario
from tests.runtime.walkers import Meadow, Walker, author

class Tower(Meadow):
    def reset(self, *, seed, options):
        clock = Entity("clock", (0, 0), "clock", {"hour": 0})
        return [Entity("w00", (0, 0), "agent", {"last": ""}), clock]

    def observe(self, view):
        return None

    def resolve(self, cluster):
        for member in cluster:
            member.write("clock", hour=member.entity("clock")["hour"] + 1)

class Keeper(Walker):
    async def proceed(self, observation, llm):
        return None

def make(*, agents=None, seed=0):
    return Scenario(Tower(1, side=9, joint=2), [Keeper("w00")], author, steps=8)
"""
LATER = """
from dataclasses import replace

def edit(moment):
    moment.entities["clock"] = replace(moment.entities["clock"], state={"hour": 11})
"""


def test_a_difference_of_things_names_them(run: Command) -> None:
    Path("tower.py").write_text(CLOCK)
    Path("later.py").write_text(LATER)
    assert run("tower.py", "--out", "origin", "--quiet")[0] == 0
    how = ("--at", "3", "--edit", "later.py", "--out", "branch", "--quiet")
    assert run("fork", "origin", *how)[0] == 0
    _, out, _ = run("diff", "origin", "branch")
    assert out.endswith(
        "and no agent, only\nthings. They diverge at:\n"
        "  00:00  clock: the entity 'clock'['state']['hour'] is 12 instead of 4\n"
    )


def test_an_interrupted_run_is_forked_and_told_on(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    assert run("interrupted.py", "--out", "here")[0] == 130
    recorded = len(Path("here/history.jsonl").read_text().splitlines()) - 1
    branch = summary(run, "fork", "here", "--at", str(recorded), "--out", "there", "--quiet")
    assert branch["out"] == "there"
    assert branch["history_sha256"] == uninterrupted["history_sha256"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere", "--at", "3"), "nowhere: holds no run"),
        (("uninterrupted",), "Missing option '--at'"),
        (("uninterrupted", "--at", "x"), "'x' is not a valid integer."),
        (("uninterrupted", "--at", "25", "--steps", "30"), "the step should be 0 to 24, not 25"),
        (("uninterrupted", "--at", "99999"), "the step should be 0 to 24, not 99999"),
        (
            ("uninterrupted", "--at", "3", "--llm", "http://127.0.0.1:9", "--policy", "fcfs"),
            "--policy is for simulated instances",
        ),
        (("uninterrupted", "--at", "3", "--llm", "http://127.0.0.1:9"), "cannot be reached"),
        (("uninterrupted", "--at", "3", "--store", "foo"), "'foo' is not a store; write memory"),
        (("uninterrupted", "--at", "3", "--edit", "no.py"), "there is no file no.py"),
        (("uninterrupted", "--at", "3", "--edit", "meadow.py"), "has no function edit"),
        (("uninterrupted", "--at", "3", "--edit", "whatif.py:wrong"), "do not match at 'w00'"),
        (
            ("uninterrupted", "--at", "3", "--edit", "whatif.py:of_nobody"),
            "whatif.py:13: KeyError: \"there is no 'w99'; there are w00, w01, w02, w03, w04, w05\"",
        ),
        (
            ("uninterrupted", "--at", "3", "--edit", "whatif.py:of_all"),
            "has replaced moment.agents by 3; it should stay a dict",
        ),
        (("uninterrupted", "--at", "3", "--edit", "whatif.py:of_events"), "should stay a list"),
        (
            ("uninterrupted", "--at", "3", "--edit", "whatif.py:of_none"),
            "whatif.py: of_none: too many positional arguments; it should be one that changes a",
        ),
        (("uninterrupted", "--at", "3", "--edit", "typo.py"), "typo.py:2: SyntaxError: "),
        (("uninterrupted", "--at", "3", "--out", "uninterrupted"), "exists already"),
        (("uninterrupted", "--at", "3", "--agents", "3"), "No such option '--agents'"),
        (("uninterrupted", "--at", "9", "--steps", "5"), "begins at step 9; it cannot end at 5"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    run: Command, uninterrupted: dict[str, Any], arguments: tuple[str, ...], sentence: str
) -> None:
    Path("whatif.py").write_text(EDIT)
    Path("typo.py").write_text("def edit(moment):\n    moment.agents.\n")
    status, out, err = run("fork", *arguments)
    assert (status, out) == (2, ""), err
    assert re.fullmatch(r"metropolis: [^\n]*\n", err), err
    assert sentence in err
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_ctrl_c_ends_the_repetition_of_past_steps(run: Command) -> None:
    world = Path("pressed.py")
    world.write_text(PRESSED)
    summary(run, "pressed.py", "--out", "origin", "--checkpoint-minutes", "60")
    handler = signal.getsignal(signal.SIGINT)
    for number in range(8):
        Path("press").touch()
        status, out, err = run("fork", "origin", "--at", "20", "--quiet")
        assert (status, out, err.strip()) == (130, "", "metropolis: interrupted"), number
        assert not Path("press").exists()
        assert signal.getsignal(signal.SIGINT) is handler
        assert not list(Path("runs").iterdir())


def test_what_is_damaged_is_named_and_no_branch_remains(run: Command) -> None:
    summary(run, "meadow.py", "--out", "origin")
    Path("origin/calls.jsonl").write_bytes(b"{")
    status, out, err = run("fork", "origin", "--at", "9")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"metropolis: origin/calls.jsonl, line 2: is damaged [^\n]*\n", err), err
    assert not list(Path("runs").iterdir())


def test_what_cannot_be_compared(run: Command, uninterrupted: dict[str, Any]) -> None:
    assert run("diff", "uninterrupted", "nowhere")[0] == 2
    summary(run, "meadow.py", "--steps", "3", "--agents", "4", "--out", "four")
    status, out, _ = run("diff", "uninterrupted", "four")
    assert (status, out.startswith("Equal up to step 0")) == (0, True)
    summary(run, "minimal", "--agents", "3", "--steps", "3", "--out", "other")
    sentence = (
        "is a run of the world 'meadow', and other one of 'minimal'; name two runs of one wor"
    )
    for command in (("diff",), ("view", "--out", "page.html", "--beside")):
        err = run(command[0], "uninterrupted", *command[1:], "other").refusal
        assert sentence in err
    assert not Path("page.html").exists()


def test_a_run_is_replayed_by_its_name(run: Command) -> None:
    summary(run, "meadow.py", "--steps", "3")
    assert run("replay", "meadow-1", "--modes", "lockstep")[0] == 0


@pytest.mark.usefixtures("uninterrupted")
def test_a_branch_that_is_killed_before_its_first_step_keeps_its_options(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> int:
        raise SystemExit(137)

    monkeypatch.setattr("metropolis.cli.fork.run_scenario", killed)
    how = ("--mode", "lockstep", "--max-tokens", "100000", "--out", "branch")
    assert run("fork", "uninterrupted", "--at", "9", *how)[0] == 137
    about = json.loads(Path("branch/run.json").read_text())["about"]
    assert (about["mode"], about["max_tokens"]) == ("lockstep", 100_000)


def test_what_was_begun_in_python_says_what_remains(run: Command) -> None:
    world = Meadow(3, side=9, joint=2)
    Simulation(world, [Walker(name) for name in world.names], out="python").run(2)
    show, fork = ("show", "python", "--agent", "w00"), ("fork", "python", "--at", "1")
    for command in (show, fork, ("diff", "python", "python")):
        status, _, err = run(*command)
        assert (status, "metropolis.fork begins a branch" in err) == (2, True), err
    assert run("diff", "--json", "python", "python")[0] == 0
