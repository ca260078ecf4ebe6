"""`check_world` finds planted faults, and nothing in sound worlds."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis import Agent, MetropolisError, Scenario, check_world
from metropolis.runtime.checks.check_world import findings
from metropolis.world.digest import digest, mutable_parts
from metropolis.world.scenario import make_scenario, scenario_names
from tests.runtime.walkers import Meadow, PlainWalker, Walker, author
from tests.world.planted import (
    NAMES,
    PLANTED,
    WALKS,
    DrawsInReset,
    WalksBackwards,
    Yard,
    each,
    yard,
)
from tests.world.planted import Walker as YardWalker

INSTALLED = [
    name
    for name in scenario_names()
    if find_spec(f"metropolis.worlds.{name}") and name != "recorded"  # it needs a trace
]


@pytest.mark.parametrize("what", PLANTED)
def test_it_finds_what_is_planted(what: str) -> None:
    world, agents, kind, sentence = PLANTED[what]
    found = findings(lambda: yard(world, agents), seeds=[0])
    assert found, what
    assert found[0].kind == kind
    assert re.fullmatch(sentence, found[0].sentence), found[0].sentence


def test_the_first_finding_is_raised() -> None:
    with pytest.raises(MetropolisError, match="reset draws from a global generator"):
        check_world(lambda: yard(DrawsInReset))


def test_it_finds_nothing_in_a_sound_world() -> None:
    assert findings(yard) == []
    assert findings(Yard(), yard().agents, seeds=[5]) == []


@pytest.mark.parametrize("kind", [Walker, PlainWalker])
def test_it_finds_nothing_where_agents_ask_models(
    kind: Callable[[str], Any],
) -> None:
    world = Meadow(8, joint=2)
    found = findings(world, [kind(name) for name in world.names], author=author, seeds=[0])
    assert [finding.kind for finding in found] == ["space", "space"]


@pytest.mark.parametrize("name", INSTALLED)
def test_the_worlds_that_ship_are_sound(name: str) -> None:
    check_world(name, seeds=[1], steps=16, schedules=1)


def test_a_routine_that_acts_otherwise_is_named() -> None:
    class Routined(YardWalker):
        def routine(self, observation: Any) -> Any:
            return (0, 0)

        async def proceed(self, observation: Any, llm: Any) -> Any:
            return (1, 0)

    (finding,) = findings(lambda: yard(Yard, each(Routined)), seeds=[0])
    assert "a second lockstep run (with `routine`, which must act as `proceed` would) differs" in (
        finding.sentence
    )


@dataclass
class Wayless(YardWalker):
    """Announces something that is no position."""

    def intent(self, position: Any) -> Any:
        return [7]


@dataclass
class Rested(YardWalker):
    """Has a field whose value is restored as another type."""

    tired: float = 0


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Wayless, r"step 0, agent 'ann', in Wayless.intent: .*: the position of 'ann' is 7; .*"),
        (Rested, r"the field 'tired' of the agent 'ann' \(Rested\) is 0 and would be .*"),
    ],
)
def test_what_only_optimistic_runs_refuse_is_found(kind: type[YardWalker], sentence: str) -> None:
    (finding,) = findings(lambda: yard(Yard, each(kind)), seeds=[0])
    assert finding.kind == "optimistic"
    fails = "seed 0, a run in the mode optimistic fails, and lockstep does not: "
    assert re.fullmatch(fails + sentence, finding.sentence), finding.sentence


def test_an_agent_that_waits_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits until it is named, but not forever."""
    monkeypatch.setattr("metropolis.runtime.checks.randomized_runs.STALL_S", 0.02)
    said = ""

    class Waiting(YardWalker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            nonlocal said
            for _ in range(200):
                said += capsys.readouterr().err
                if "agent 'ann', in test_an_agent_that_waits_is_named.<locals>.Waiting" in said:
                    break
                await asyncio.sleep(0.01)
            return (0, 0)

    findings(lambda: yard(Yard, each(Waiting)), seeds=[0], steps=2, schedules=0)
    assert "Waiting.proceed (at " in said


def test_a_schedule_that_breaks_a_world_is_found() -> None:
    """Hidden state that has no effect in lockstep is found by its effect in other schedules."""
    newest = [0]

    class KnowsWhoIsAhead(Yard):
        def observe(self, view: Any) -> Any:
            newest[0] = max(newest[0], view.step) if view.step else 0
            return {**super().observe(view), "luck": (newest[0] - view.step) % 5}

    (finding,) = findings(lambda: yard(KnowsWhoIsAhead), seeds=[0])
    assert re.fullmatch(
        r"seed 0, out of order \(versioned, schedule \d\) differs from lockstep: "
        r"step \d+, the (action of|entity) .* is .* instead of .*",
        finding.sentence,
    )


@dataclass
class Counting(YardWalker):
    counts: set[int] = field(default_factory=set)
    places: list[tuple[str, frozenset[str]]] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.counts.add(len(self.counts))
        self.places.append(("yard", frozenset(observation["near"])))
        return WALKS[self.by(self.counts) % 5]

    def by(self, counts: set[int]) -> int:
        return sorted(counts)[-1]


@dataclass
class ByOrder(Counting):
    def by(self, counts: set[int]) -> int:
        return list(counts)[-1]


def test_agents_that_go_by_the_order_of_a_set_are_found() -> None:
    assert findings(lambda: yard(agents=each(Counting)), seeds=[0]) == []
    (finding,) = findings(lambda: yard(agents=each(ByOrder)), seeds=[0])
    assert re.fullmatch(
        r"seed 0, a run resumed at step 15 with agents whose sets have another order differs from "
        r"lockstep: step \d+, the action of .*; sort sets before their order matters",
        finding.sentence,
    )


def test_a_counter_in_a_class_is_found() -> None:
    class Counts(Yard):
        seen = 0

        def observe(self, view: Any) -> Any:
            Counts.seen += 1
            return super().observe(view)

    (finding,) = findings(lambda: yard(Counts), seeds=[0], steps=1)
    assert finding.kind == "state"
    assert "step 0: the class attribute Counts.seen changed, and is 6 now;" in finding.sentence


@pytest.mark.parametrize("kind", [deque, bytearray])
def test_a_queue_or_an_array_of_bytes_in_a_class_is_found(kind: Any) -> None:
    class Queue(Yard):
        seen = kind()

        def observe(self, view: Any) -> Any:
            self.seen.append(1)
            return super().observe(view)

    (finding,) = findings(lambda: yard(Queue), seeds=[0], steps=1)
    assert "step 0: the class attribute Queue.seen changed, and is" in finding.sentence


@dataclass
class Ledger:
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Trader(YardWalker):
    ledger: Ledger = field(default_factory=Ledger)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.ledger.rows.append([self.name])
        return WALKS[0]


def test_what_agents_share_is_one_finding() -> None:
    def traders() -> Scenario:
        ledger = Ledger()
        return yard(agents=lambda: [Trader(name, ledger=ledger) for name in NAMES])

    (finding,) = findings(traders)
    assert finding.sentence.startswith(
        "seed 0, step 0: the Ledger that the agents 'ann' (at .ledger), 'bob' (at .ledger) and 4 "
        "more share changed, and is "
    )


def test_agents_are_needed() -> None:
    with pytest.raises(MetropolisError, match="the world 'yard' needs its agents; pass them after"):
        check_world(Yard())


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"steps": 0}, "steps is 0; it should be a whole number, at least 1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"schedules": -1}, "schedules is -1; it should be a whole number, at least 0"),
        ({"seeds": ()}, "there are no seeds"),
        ({"seeds": 5}, "seeds is 5; it should be a list of whole numbers"),
        ({"seeds": "ab"}, "seeds is 'ab'; it should be a list of whole numbers"),
        ({"seeds": [-1]}, "a seed is -1; it should be a whole number from 0"),
        ({"options": 5}, "options is 5; it should be a dictionary, or None"),
        ({"world_options": 5}, "world_options is 5; it should be a dictionary, or None"),
        ({"world_options": {"size": 3}}, "the world 'smallville' has no option 'size'"),
        (
            {"world": yard, "agents": None, "world_options": {"size": 3}},
            "world_options is {'size': 3}, but only a world given by its name takes them",
        ),
        ({"author": 5}, "author is 5; it should be a function, or None"),
        ({"agents": 0}, "agents is 0; it should be a whole number, at least 1"),
        ({"agents": yard().agents}, r"agents is \[.*; it should be a whole number, at least 1"),
        ({"world": yard, "agents": 3}, "agents is 3, but a scenario function makes its own; omit"),
        (
            {"world": lambda: yard(WalksBackwards), "agents": None},
            "the world's max_velocity is -1; it",
        ),
        ({"world": 3}, "the world is 3; it should be a World, a name, or a scenario function"),
    ],
)
def test_checks_that_would_check_nothing_are_refused(option: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        check_world(**{"world": "smallville", "agents": 2} | option)


@pytest.mark.parametrize("world", ["minimal", Path("minimal"), lambda: make_scenario("minimal")])
def test_the_author_answers_beside_a_name_and_a_function(world: Any) -> None:
    asked = []

    def answer(request: Any, _draw: Any) -> str:
        asked.append(request)
        return "hm"

    check_world(world, author=answer, seeds=np.arange(1), steps=np.int64(12), schedules=0)
    assert asked


def test_what_is_shared_is_told_apart_from_what_is_equal() -> None:
    mine: dict[str, Any] = {"a": [1]}
    mine["self"] = mine
    parts = mutable_parts(mine)
    assert {path for path, _ in parts.values()} == {"", "['a']"}
    before = digest(mine)
    assert digest(mine) == before
    mine["a"].append(2)
    assert digest(mine) != before
    assert {path for path, _ in mutable_parts(yard().agents[0]).values()} == {"", ".met"}


def test_scenarios_and_agents_are_not_used_up() -> None:
    scenario = yard()
    assert findings(scenario.world, scenario.agents, seeds=[0], steps=6, schedules=1) == []
    assert isinstance(scenario, Scenario)
    assert [agent.met for agent in scenario.agents if isinstance(agent, Agent)] == [[]] * 6
