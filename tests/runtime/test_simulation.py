"""Live runs: whatever the mode, the history equals lockstep's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.rules.metrics import CHEBYSHEV, EUCLIDEAN, MANHATTAN
from metropolis.runtime.replay import Setting, replay
from metropolis.runtime.simulation import RunResult, Simulation
from metropolis.sim.profiles import load_profile
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import CausalityError, MetropolisError
from metropolis.world.transaction import Transaction
from tests.runtime.walkers import Meadow, PlainWalker, Walker, author

PROFILE = load_profile("llama-3-8b/l4")


def run(
    world: Meadow, steps: int, *, agent: Any = Walker, instances: int = 2, **how: Any
) -> RunResult:
    llm = VirtualInstances(Scripted(author), PROFILE, instances)
    agents = [agent(name) for name in world.names]
    return Simulation(world, agents, llm, **how).run(steps)


@settings(max_examples=25, deadline=None)
@given(
    walkers=st.integers(1, 9),
    side=st.integers(4, 30),
    radius=st.integers(0, 4),
    velocity=st.integers(0, 2),
    metric=st.sampled_from([CHEBYSHEV, EUCLIDEAN, MANHATTAN]),
    seed=st.integers(0, 1 << 30),
    joint=st.integers(0, 4),
    instances=st.integers(1, 3),
)
def test_every_mode_equals_lockstep(
    walkers: int, side: int, radius: int, velocity: int, metric: Any, seed: int, joint: int,
    instances: int,
) -> None:  # fmt: skip
    def world() -> Meadow:
        near = min(joint, max(radius, 2 * velocity))
        return Meadow(
            walkers, side=side, radius=radius, velocity=velocity, metric=metric, joint=near
        )

    ways = [
        {"mode": "lockstep"},
        {"mode": "sequential"},
        {"rule": "versioned"},
        {"rule": "conservative"},
        {"rule": "versioned", "agent": PlainWalker},
    ]
    results = [run(world(), 12, seed=seed, instances=instances, **way) for way in ways]
    for way, result in zip(ways, results, strict=True):
        assert result.steps == 12
        assert result.history == results[0].history, way
        assert result.history_sha256 == results[0].history_sha256
        assert result.calls == results[0].calls
        assert (result.trace.positions == results[0].trace.positions).all()


@pytest.mark.parametrize(("instances", "tolerance"), [(1, 1e-9), (2, 0.01)])
@pytest.mark.parametrize("mode", ["lockstep", "versioned", "conservative"])
def test_virtual_time_is_that_of_a_replay(mode: str, instances: int, tolerance: float) -> None:
    """Live in virtual time or replayed from its own trace: the same makespan.

    Without talks: a trace does not know that an answer waits for another agent's question. With
    two instances, which of them gets which of two simultaneous calls may differ.
    """
    how = {"mode": "lockstep"} if mode == "lockstep" else {"rule": mode}
    world = Meadow(7, side=14, joint=-1)
    result = run(world, 40, seed=3, instances=instances, **how)
    bounds = world.perception_radius, world.max_velocity
    setting = Setting(world.metric, *bounds, PROFILE, "l4", instances)
    replayed = replay(result.trace, mode, setting)
    assert result.simulated
    assert replayed.calls == result.calls > 50
    assert result.makespan_s == pytest.approx(replayed.makespan_sim_s, rel=tolerance)


def test_out_of_order_is_faster_where_walkers_are_apart() -> None:
    world = Meadow(9, side=60)
    lockstep, out_of_order = run(world, 40, mode="lockstep"), run(world, 40)
    assert out_of_order.makespan_s < 0.8 * lockstep.makespan_s


def test_steps_come_in_order_and_can_be_left() -> None:
    world = Meadow(5, side=30)
    llm = VirtualInstances(Scripted(author), PROFILE, 2)
    simulation = Simulation(world, [Walker(name) for name in world.names], llm)
    seen = []
    for record in simulation.steps(50):
        seen.append(record.step)
        if record.step == 20:
            break
    assert seen == list(range(21))
    assert simulation.result().steps >= 21
    with pytest.raises(MetropolisError, match="runs once"):
        simulation.run(50)


class Broken(Meadow):
    """Remembers in the world what belongs to entities."""

    async def resolve(self, cluster: Transaction) -> None:
        self.total = 1


@pytest.mark.parametrize("agent", [Walker, PlainWalker])
def test_what_goes_wrong_is_raised_where_the_run_was_started(agent: Any) -> None:
    with pytest.raises(CausalityError, match="'total' was set while the simulation runs"):
        run(Broken(3), 5, agent=agent)

    class Failing(agent):
        def answer(self, question: Any, llm: Any) -> Any:
            return None

        def proceed(self, observation: Any, llm: Any) -> Any:
            raise ZeroDivisionError("an agent's own fault")

    with pytest.raises(ZeroDivisionError, match="own fault"):
        run(Meadow(3), 5, agent=Failing)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"mode": "fast"}, "no mode 'fast'"),
        ({"rule": "loose"}, "no rule 'loose'"),
        ({"resume": True}, "resume needs out"),
    ],
)
def test_options_that_make_no_sense_are_refused(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        run(Meadow(2), 1, **how)


def test_bodies_and_agents_must_match() -> None:
    world = Meadow(3)
    for names in (["w00", "w01"], ["w00", "w01", "x"], ["w00", "w01", "w02", "w02"]):
        with pytest.raises(MetropolisError, match="agents and bodies do not match"):
            Simulation(world, [Walker(name) for name in names])


def test_a_joint_radius_beyond_what_the_rules_allow_is_refused() -> None:
    with pytest.raises(MetropolisError, match="joint radius 5 exceeds 2"):
        run(Meadow(2, joint=5), 1)


def test_within_an_event_loop_there_is_a_sentence() -> None:
    async def notebook() -> None:
        with pytest.raises(MetropolisError, match="to_thread"):
            run(Meadow(2), 1)
        result = await asyncio.to_thread(run, Meadow(2), 3)
        assert result.steps == 3

    asyncio.run(notebook())
