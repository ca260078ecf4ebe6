"""SmallVille: the same history in every mode, and the laws of the town."""

from __future__ import annotations

import numpy as np
import pytest

from metropolis import Client, Scenario, Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.maps.town import alderbrook
from metropolis.runtime.simulation import RunResult
from metropolis.types import MetropolisError

AGENTS, STEPS = 6, 900
"""The morning of a lodge."""


def run(scenario: Scenario, steps: int, seed: int = 0, **options: str) -> RunResult:
    client = Client(Scripted(scenario.author))
    simulation = Simulation(scenario.world, scenario.agents, client, seed=seed, **options)
    return simulation.run(steps)


@pytest.fixture(scope="module")
def morning() -> tuple[Scenario, RunResult]:
    scenario = make_scenario("smallville", agents=AGENTS)
    return scenario, run(scenario, STEPS, mode="lockstep")


@pytest.mark.parametrize("rule", ["versioned", "conservative"])
def test_the_history_is_lockstep_s(morning: tuple[Scenario, RunResult], rule: str) -> None:
    scenario = make_scenario("smallville", agents=AGENTS)
    result = run(scenario, STEPS, mode="out_of_order", rule=rule)
    assert result.history_sha256 == morning[1].history_sha256


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


def test_the_story_names_people_and_quotes_them(morning: tuple[Scenario, RunResult]) -> None:
    scenario = make_scenario("smallville", agents=AGENTS)
    assert scenario.story is not None
    lines = [line for record in morning[1].history for line in scenario.story(record)]
    told = "\n".join(lines)
    assert all(agent.name in told for agent in scenario.agents)
    assert "“" in told
    assert len(lines) < 100


def test_it_has_25_residents() -> None:
    assert len(make_scenario("smallville").agents) == 25
    with pytest.raises(MetropolisError, match="largeville"):
        make_scenario("smallville", agents=26)
