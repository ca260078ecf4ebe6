"""Ordinary mistakes in a world of one's own: the sentence names the line to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands import Command

WORLD = """
from dataclasses import dataclass
from gymnasium import spaces
from metropolis import Agent, Entity, Scenario, World

class Lane(World):
    perception_radius = 2.0
    max_velocity = 1.0
    action_space = spaces.Dict({"say": spaces.Text(20)})

    def reset(self, *, seed, options):
        return [Entity("a", (0, 0), "agent"), Entity("b", (1, 0), "agent")]

    def observe(self, view):
        return {"near": len(view.agents())}

    def resolve(self, cluster):
        for one in cluster:
            one.write(said=one.action["say"])

@dataclass
class Walker(Agent):
    name: str

    async def proceed(self, observation, llm):
        return {"say": "hey"}

def make(*, agents=None, seed=0):
    return Scenario(Lane(), [Walker("a"), Walker("b")], None, steps=3)
"""
RESOLVE = """    def resolve(self, cluster):
        for one in cluster:
            one.write(said=one.action["say"])
"""
LANE, WALKER, SAID = (
    1 + WORLD.splitlines().index(line)
    for line in (
        "class Lane(World):",
        "@dataclass",
        "            " + 'one.write(said=one.action["say"])',
    )
)


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        ("observation, llm", "observation", f"{WALKER}: TypeError: .*3 were given; fix it there"),
        (
            'return {"say": "hey"}',
            "return None",
            f"{SAID}: TypeError: .*; fix it there; the action of 'a' is not in the world's "
            r"action space: the action is None, which is not in the space Dict\('say'",
        ),
        (
            '{"say": "hey"}',
            '{"say": llm.chat("hey")}',
            f"{WALKER}: step 0, agent 'a': its action .*<coroutine object LLM.chat at .* cannot be "
            r"copied \(.*\); write await before the call",
        ),
        (
            'return {"say": "hey"}',
            'return {"say": llm.chat("hey").text}',
            r"\d+: AttributeError: 'coroutine' object has no attribute 'text'; write await before",
        ),
        (
            'one.write(said=one.action["say"])',
            "one.move((9, 0))",
            f"{SAID}: step 0, agent 'a': moves from .*: .* further than the velocity 1",
        ),
        (
            'one.write(said=one.action["say"])',
            "self.count = 1",
            f"{SAID}: the world's attribute 'count' was set while the simulation runs",
        ),
        (
            RESOLVE,
            "    def resolve(self, cluster):\n        return 5\n",
            f"{LANE}: it returned 5; it should return None",
        ),
        (
            RESOLVE,
            "    async def resolve(self, cluster):\n"
            "        one = cluster.members[0]\n"
            "        await one.ask('b', 'who?')\n",
            f"{WALKER}: NotImplementedError: Walker.answer is not defined",
        ),
    ],
)
def test_the_line_is_named(run: Command, right: str, wrong: str, sentence: str) -> None:
    assert WORLD.count(right) == 1
    Path("lane.py").write_text(WORLD.replace(right, wrong))
    status, out, err = run("lane.py", "--quiet")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert re.search(rf"/lane\.py:{sentence}", err), err


def test_an_author_writes_texts(run: Command) -> None:
    text = WORLD.replace('{"say": "hey"}', '{"say": (await llm.chat("hey")).text}')
    Path("lane.py").write_text(text.replace(", None, steps", ", lambda *_: None, steps"))
    err = run("lane.py", "--quiet").refusal
    assert "the scripted author: the author returned None for" in err, err
    assert "it should be a text" in err


def test_a_run_beyond_the_last_date_makes_no_folder(run: Command) -> None:
    late = "class Lane(World):\n    start = __import__('datetime').datetime.max"
    Path("lane.py").write_text(WORLD.replace("class Lane(World):", late))
    assert "step 3 of the world would begin after the year 9999" in run("lane.py").refusal
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("story", "sentence"),
    [
        ("3", "the scenario's story returned 3; it should return a list of sentences"),
        ("[1 / 0]", r"metropolis: .*/lane\.py:\d+: ZeroDivisionError: division by zero"),
        ("exit()", r"metropolis: .*/lane\.py:\d+: SystemExit: None; fix it there"),
    ],
)
def test_a_story_is_checked_when_it_is_told(run: Command, story: str, sentence: str) -> None:
    text = WORLD.replace(", None, steps", f", None, lambda record: {story}, steps")
    Path("lane.py").write_text(text)
    for out in ("one", "another"):
        run("lane.py", "--quiet", "--out", out)  # tells no story
    for command in (("lane.py",), ("diff", "one", "another")):
        assert re.search(sentence, run(*command).refusal)


def test_the_check_names_the_same_line(run: Command) -> None:
    Path("lane.py").write_text(WORLD.replace("view.agents())}", 'view.agents()), "x": {}["y"]}'))
    status, _, err = run("lane.py", "--quiet")
    (line,) = re.findall(r"lane\.py:\d+: KeyError: 'y'", err)
    status, out, err = run("world", "check", "lane.py")
    assert status in (1, 2)
    assert line in out + err, out + err
