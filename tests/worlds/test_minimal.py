"""The tutorial's world: short, alive, and the same in every mode."""

from pathlib import Path

import pytest

from metropolis import Client, Scenario, Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.result import RunResult

SOURCE = Path(__file__).parents[2] / "worlds" / "minimal" / "__init__.py"


def run(scenario: Scenario, seed: int = 0, **options: str) -> RunResult:
    client = Client(Scripted(scenario.author))
    simulation = Simulation(scenario.world, scenario.agents, client, seed=seed, **options)
    return simulation.run(scenario.steps)


def test_it_is_short() -> None:
    assert len(SOURCE.read_text().splitlines()) <= 75


def test_a_rumour_spreads_and_grows() -> None:
    scenario = make_scenario("minimal")
    history = run(scenario).history
    story = [line for record in history for line in scenario.story(record)]
    geese = [int(line.split()[-2]) for line in story]
    assert geese[0] > 2
    assert max(geese) > 20
    assert all(agent.rumour for agent in scenario.agents), "everybody has heard it"


@pytest.mark.parametrize("seed", range(3))
def test_every_mode_tells_the_same_story(seed: int) -> None:
    modes = [
        {"mode": "lockstep"},
        {"mode": "sequential"},
        {"mode": "out_of_order", "rule": "versioned"},
        {"mode": "out_of_order", "rule": "conservative"},
    ]
    runs = [run(make_scenario("minimal", agents=25, seed=seed), seed, **mode) for mode in modes]
    assert len({result.history_sha256 for result in runs}) == 1
    assert runs[0].calls > 0
