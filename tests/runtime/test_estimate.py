"""Estimates: exact if the whole run is rehearsed, proportional otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.usage import Prices
from metropolis.runtime.live.estimate import estimate_run
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario, make_scenario
from tests.runtime.walkers import Meadow, Walker, author

PROFILE = "llama-3-8b/l4"


def meadow(walkers: int, joint: int) -> Scenario:
    world = Meadow(walkers, side=9, joint=joint)
    return Scenario(world, [Walker(name) for name in world.names], author)


@settings(max_examples=15, deadline=None)
@given(walkers=st.integers(1, 8), joint=st.integers(0, 2), seed=st.integers(0, 1000))
def test_a_whole_rehearsal_is_exact(walkers: int, joint: int, seed: int) -> None:
    prices = Prices(2.0, 5.0)
    found = estimate_run(
        meadow(walkers, joint), 10, seed, SimulatedFleet.uniform(PROFILE, 2), prices
    )
    scenario = meadow(walkers, joint)
    llm = VirtualInstances(Scripted(author), SimulatedFleet.uniform(PROFILE, 2))
    run = Simulation(scenario.world, scenario.agents, llm, seed=seed).run(10)
    assert found.rehearsed_steps == found.steps == 10
    assert found.total.calls == run.calls
    assert found.total.prompt_tokens == run.prompt_tokens
    assert found.total.output_tokens == run.output_tokens
    assert found.total.cost == pytest.approx(prices.cost(run.prompt_tokens, run.output_tokens))
    for function, usage in run.usage.items():
        assert found.functions[function].calls == usage.calls
    assert found.total.output_tokens_max >= found.total.output_tokens
    assert found.total.cost_max is not None
    assert found.total.cost_max >= found.total.cost


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order"])
def test_the_makespan_is_the_run_s(mode: str) -> None:
    # for worlds without talks: a trace does not hold the order of questions between agents
    found = estimate_run(make_scenario("minimal"), 120, 0, SimulatedFleet.uniform(PROFILE, 2))
    scenario = make_scenario("minimal")
    llm = VirtualInstances(Scripted(scenario.author), SimulatedFleet.uniform(PROFILE, 2))
    run = Simulation(scenario.world, scenario.agents, llm, mode=mode).run(120)
    assert found.makespan_sim_s[mode] == pytest.approx(run.makespan_s, rel=0.02)


def test_what_was_not_rehearsed_is_taken_in_proportion() -> None:
    steps = []
    one, ends = SimulatedFleet.uniform(PROFILE), lambda: len(steps) >= 20
    found = estimate_run(meadow(5, 1), 400, 0, one, progress=steps.append, should_stop=ends)
    assert 20 <= found.rehearsed_steps == len(steps) < 30
    part = estimate_run(meadow(5, 1), found.rehearsed_steps, 0, one)
    factor = 400 / found.rehearsed_steps
    assert found.total.calls == pytest.approx(part.total.calls * factor)
    assert found.total.output_tokens == pytest.approx(part.total.output_tokens * factor)
    assert found.makespan_sim_s["lockstep"] == pytest.approx(
        part.makespan_sim_s["lockstep"] * factor
    )
    assert found.span_s == 400 * 10


def test_an_unknown_profile_is_refused_before_the_rehearsal() -> None:
    with pytest.raises(MetropolisError, match="there is no profile"):
        estimate_run(meadow(3, 1), 10, 0, SimulatedFleet.uniform("gpt", 1))
