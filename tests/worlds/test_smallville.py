"""SmallVille: the same history in every mode, and the laws of the town."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis import Client, Scenario, Simulation, make_scenario, parallel_env
from metropolis.llm.backends.scripted import Scripted
from metropolis.maps.town import alderbrook
from metropolis.runtime.live.result import RunResult
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError
from metropolis.world.saving import restore, save
from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.reacting import SILENCE_S
from metropolis.worlds.smallville.settings import PRESETS
from metropolis.worlds.smallville.world import SmallVille

RULES = ("versioned", "conservative")
AGENTS, STEPS = 6, 900
"""The morning of a lodge."""


def run(scenario: Scenario, steps: int, seed: int = 0, **options: Any) -> RunResult:
    client = Client(Scripted(scenario.author))
    simulation = Simulation(scenario.world, scenario.agents, client, seed=seed, **options)
    return simulation.run(steps)


@pytest.fixture(scope="module")
def morning() -> tuple[Scenario, RunResult]:
    scenario = make_scenario("smallville", agents=AGENTS)
    return scenario, run(scenario, STEPS, mode="lockstep")


@pytest.mark.parametrize("rule", RULES)
def test_the_history_is_lockstep_s(morning: tuple[Scenario, RunResult], rule: str) -> None:
    scenario = make_scenario("smallville", agents=AGENTS)
    result = run(scenario, STEPS, mode="out_of_order", rule=rule)
    assert result.history_sha256 == morning[1].history_sha256


def test_the_history_is_lockstep_s_at_noon_with_slow_answers() -> None:
    """In virtual time answers come in an order of their own."""
    histories = set()
    ways = [("out_of_order", rule) for rule in RULES]
    for mode, rule in (("lockstep", ""), *ways, ("optimistic", "")):
        scenario = make_scenario("smallville", agents=12)
        noon = SmallVille(alderbrook().map, town_profiles()[:12], start=datetime(2023, 2, 13, 12))
        slow = VirtualInstances(
            Scripted(scenario.author), SimulatedFleet.uniform("llama-3-8b/l4", 1)
        )
        options = {"mode": mode} | ({"rule": rule} if rule else {})
        result = Simulation(noon, scenario.agents, Client(slow), **options).run(240)
        histories.add(result.history_sha256)
        assert result.simulated
        assert any(event.kind == "conversation" for r in result.history for event in r.events)
    assert len(histories) == 1


def test_nobody_walks_through_walls(morning: tuple[Scenario, RunResult]) -> None:
    positions = morning[1].trace.positions.astype(int)
    walls = alderbrook().map.walls
    assert not walls[positions[..., 1], positions[..., 0]].any()
    moves = np.abs(np.diff(positions, axis=0)).sum(axis=2)
    assert moves.max() == 1
    assert (moves.sum(axis=0) > 0).all(), "everybody has been up"


def test_both_remember_a_conversation(morning: tuple[Scenario, RunResult]) -> None:
    scenario, result = morning
    residents = {agent.name: agent for agent in scenario.agents}
    talks = [event for record in result.history[:-1] for event in record.events]
    talks = [event for event in talks if event.kind == "conversation"]
    assert talks
    for event in talks:
        two = (event.source, event["partner"])
        for own, other in (two, two[::-1]):
            chats = [node for node in residents[own].memory.nodes if node.kind == "chat"]
            assert any(node.object == other and str(event["about"]) in node.text for node in chats)
        speakers = [speaker for speaker, _ in event["lines"]]
        assert speakers == [two[i % 2] for i in range(len(speakers))]


def test_a_run_taken_up_again_is_the_same_run(
    morning: tuple[Scenario, RunResult], tmp_path: Path
) -> None:
    for steps in (STEPS // 2, STEPS):
        scenario = make_scenario("smallville", agents=AGENTS)
        out = tmp_path / "run"
        result = run(scenario, steps, out=out, resume=steps == STEPS)
    assert result.history_sha256 == morning[1].history_sha256


def test_a_resident_is_saved_whole(morning: tuple[Scenario, RunResult]) -> None:
    own, other = morning[0].agents[2], make_scenario("smallville", agents=AGENTS).agents[2]
    saved = save(own)
    assert save(other) != saved
    restore(other, json.loads(json.dumps(saved)))
    assert save(other) == saved
    assert other.memory.nodes == own.memory.nodes
    question, now_s = "who has news of the festival?", own.now_s + 60
    for settings in PRESETS.values():
        assert np.array_equal(
            other.memory.scores(question, now_s, other.embed, settings),
            own.memory.scores(question, now_s, own.embed, settings),
        )


def test_spaces_hold_and_any_action_is_possible() -> None:
    """Actions sampled at random, with nobody to answer questions."""
    environment = parallel_env("smallville", agents=AGENTS)
    observations, _ = environment.reset(seed=3)
    for number, agent in enumerate(environment.agents):
        environment.action_space(agent).seed(number)
    heard = 0
    for _ in range(60):
        for agent, observation in observations.items():
            assert observation in environment.observation_space(agent)
        actions = {agent: environment.action_space(agent).sample() for agent in environment.agents}
        observations = environment.step(actions)[0]
        heard += sum(len(observation.heard) for observation in observations.values())
    assert heard > 0


def test_two_who_have_talked_are_silent_for_a_while(morning: tuple[Scenario, RunResult]) -> None:
    begun: dict[frozenset[str], int] = {}
    for record in morning[1].history:
        for event in record.events:
            if event.kind == "conversation":
                two = frozenset((event.source, event["partner"]))
                assert event["until"] > event.step
                assert event.step >= begun.get(two, event.step)
                begun[two] = event["until"] + SILENCE_S / 10


def test_a_conversation_lasts_as_long_as_it_says(morning: tuple[Scenario, RunResult]) -> None:
    busy: dict[str, int] = {}
    for record in morning[1].history:
        for name, body in record.writes.items():
            assert body is not None
            if busy.get(name, 0) > record.step:
                assert body["busy_until"] == busy[name], "what is written is the same talk"
            if body["busy_until"] > record.step:
                busy[name] = body["busy_until"]
    assert busy


def test_a_pair_meets_half_way() -> None:
    scenario = make_scenario("smallville", agents=10)
    result = run(scenario, 1200, mode="lockstep")
    number = {agent.name: index for index, agent in enumerate(scenario.agents)}
    positions, apart = result.trace.positions.astype(int), 0
    for record in result.history:
        for event in record.events:
            two = (
                [number[event.source], number[event["partner"]]] if "partner" in event.data else []
            )
            if not two or event["until"] >= len(positions) or event["until"] - event.step < 12:
                continue
            before, after = (
                int(np.abs(np.subtract(*positions[step, two])).sum())
                for step in (event.step, event["until"])
            )
            assert after <= max(before, 1), "they walk towards each other"
            assert after <= 1, "a conversation of two minutes is long enough for eight tiles"
            apart += before > 1
    assert apart


def test_the_story_names_people_and_quotes_them(morning: tuple[Scenario, RunResult]) -> None:
    scenario = make_scenario("smallville", agents=AGENTS)
    assert scenario.story is not None
    lines = [line for record in morning[1].history for line in scenario.story(record)]
    told = "\n".join(lines)
    assert sum(agent.name in told for agent in scenario.agents) > AGENTS // 2
    assert "“" in told
    assert not any(line[0].isdigit() for line in lines), "who prints it puts the time before it"
    assert len(lines) < 100


def test_it_has_25_residents() -> None:
    assert len(make_scenario("smallville").agents) == 25
    with pytest.raises(MetropolisError, match="largeville"):
        make_scenario("smallville", agents=26)
