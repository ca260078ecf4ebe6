"""Concurrent calls of residents: history, requests and answers are those of one call at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from metropolis import Client, Scenario, Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, RefusedError, Request
from metropolis.llm.journal import Key, key_of
from metropolis.maps.town import alderbrook
from metropolis.runtime.live.result import RunResult
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.schema import Calls, Trace
from metropolis.world.saving import save
from metropolis.world.transaction import Member
from metropolis.worlds.smallville import (
    dialogue,
    perceiving,
    planning,
    reflecting,
    talking,
    town_profiles,
)
from metropolis.worlds.smallville.dialogue import (
    UTTERANCES_MAX,
    Line,
    Preparation,
    Relation,
    Summary,
    Turn,
)
from metropolis.worlds.smallville.world import SmallVille

AGENTS, STEPS = 12, 300
SPEAKS, PREPARES = "iterative_convo", "summarize_relationship"


class Shuffled(Scripted):
    """Answers after a number of turns of the event loop that depends on the request."""

    def __init__(self, scenario: Scenario, seed: int, fails: str = "") -> None:
        super().__init__(scenario.author)
        self.seed, self.fails = seed, fails
        self.answers: Counter[tuple[Key, str]] = Counter()

    async def complete(self, request: Request) -> Completion:
        for _ in range(crc32(f"{self.seed}{request.digest}".encode()) % 30 if self.seed else 0):
            await asyncio.sleep(0)
        if request.function == self.fails and "so far:\n(nothing" not in request.text:
            raise RefusedError("no such line")
        answer = await super().complete(request)
        self.answers[key_of(request), answer.text] += 1
        return answer


def lived(seed: int, mode: str = "lockstep", fails: str = "") -> tuple[RunResult, Shuffled]:
    scenario = make_scenario("smallville", agents=AGENTS)
    backend = Shuffled(scenario, seed, fails)
    noon = SmallVille(alderbrook().map, town_profiles()[:AGENTS], start=datetime(2023, 2, 13, 12))
    for agent in scenario.agents:
        agent.unreflected = 40
    return Simulation(noon, scenario.agents, Client(backend), mode=mode).run(STEPS), backend


@pytest.fixture(scope="module")
def noon() -> tuple[RunResult, Shuffled]:
    return lived(0)


def test_what_calls_wait_for_does_not_depend_on_latency() -> None:
    """Turns that are prepared early, or late, are not waited for until their speaker's turn."""

    def calls_on(instances: int, mode: str) -> Calls:
        scenario = make_scenario("smallville", agents=AGENTS)
        world = SmallVille(
            alderbrook().map, town_profiles()[:AGENTS], start=datetime(2023, 2, 13, 12)
        )
        fleet = SimulatedFleet.uniform("llama-3-8b/l4", instances)
        client = Client(VirtualInstances(Scripted(scenario.author), fleet))
        return Simulation(world, scenario.agents, client, mode=mode).run(STEPS).trace.calls

    expected, found = calls_on(1, "lockstep"), calls_on(8, "optimistic")
    assert len(expected) > 500
    for name in ("step", "agent", "function", "parent_offsets", "parents"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


async def one_by_one(*coroutines: Awaitable[Any]) -> list[Any]:
    return [await each for each in coroutines]


async def held_in_turn(first: Member, second: Member, step_s: float) -> bool:
    """The reference: each speaker prepares its turn when the other has spoken."""
    lines: tuple[Line, ...] = ()
    speaker, listener = first, second
    while len(lines) < UTTERANCES_MAX:
        relation = await listener.ask(speaker.name, Preparation(listener.name))
        turn = Turn(listener.name, listener.me["doing"], lines, relation, asyncio.Event())
        said = await listener.ask(speaker.name, turn)
        lines += (Line(speaker.name, said.text[: dialogue.LINE_LETTERS]),)
        if said.ends:
            break
        speaker, listener = listener, speaker
    about = await second.ask(first.name, Summary(second.name, lines))
    dialogue._write(first, second, lines, about, first.step + dialogue._steps(lines, step_s))
    return True


def test_concurrent_calls_change_neither_history_nor_words(
    noon: tuple[RunResult, Shuffled], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, backend = noon
    monkeypatch.setattr(dialogue, "_hold", held_in_turn)
    for module in (perceiving, planning, reflecting, talking):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(gather=one_by_one))
    reference, in_turn = lived(0, "sequential")
    assert result.history_sha256 == reference.history_sha256
    assert not in_turn.answers - backend.answers
    in_vain = backend.answers - in_turn.answers
    talks = [event for each in result.history for event in each.events if "lines" in event.data]
    unspoken = sum(min(2, UTTERANCES_MAX - len(event["lines"])) for event in talks)
    assert {key.function for key, _ in in_vain} == {PREPARES}
    assert in_vain.total() == unspoken > 0
    assert {"insight_and_guidance", "new_decomp_schedule"} <= {
        k.function for k, _ in in_turn.answers
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_answers_changes_nothing(noon: tuple[RunResult, Shuffled], seed: int) -> None:
    result, backend = lived(seed, "out_of_order")
    assert result.history_sha256 == noon[0].history_sha256
    assert backend.answers == noon[1].answers


def ancestors(trace: Trace, call: int) -> set[int]:
    """The calls that `call` waits for, directly or not."""
    calls, found, left = trace.calls, set[int](), [call]
    while left:
        one = left.pop()
        parents = calls.parents[calls.parent_offsets[one] : calls.parent_offsets[one + 1]]
        left += set(parents.tolist()) - found
        found |= set(parents.tolist())
    return found


def test_a_speaker_prepares_while_it_and_the_other_speak(noon: tuple[RunResult, Shuffled]) -> None:
    trace = noon[0].trace
    of = [trace.calls.functions[number] for number in trace.calls.function.tolist()]
    rows = (trace.calls.step * trace.agents + trace.calls.agent).tolist()
    turns = 0
    for call, function in enumerate(of):
        if function != SPEAKS:
            continue
        waited = ancestors(trace, call)
        own = [each for each in waited if of[each] == PREPARES and rows[each] == rows[call]]
        spoken = [each for each in waited if of[each] == SPEAKS]
        assert len(own) == 1 + sum(rows[each] == rows[call] for each in spoken)
        heard = [each for each in ancestors(trace, max(own)) if of[each] == SPEAKS]
        assert len(heard) == max(0, len(spoken) - 2), "it does not wait for the last two turns"
        turns += 1
    assert turns


def test_preparing_changes_nothing_in_a_resident() -> None:
    scenario = make_scenario("smallville", agents=2)
    me, other = scenario.agents
    me.begin_step(0, 1)
    before = save(me)
    chat = SimpleNamespace(
        chat=lambda *_, **__: asyncio.sleep(0, SimpleNamespace(text=" Friends. "))
    )
    relation = asyncio.run(me.answer(Preparation(other.name), chat))
    assert isinstance(relation, Relation)
    assert relation.text == "Friends."
    assert relation.memories
    assert save(me) == before


def test_a_failure_in_a_conversation_is_one_sentence() -> None:
    for mode in ("lockstep", "optimistic"):
        with pytest.raises(RefusedError, match="no such line"):
            lived(1, mode, fails=SPEAKS)
