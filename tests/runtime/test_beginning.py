"""What makes no sense is refused before anything is written down, and leaves nothing behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis.llm import Client
from metropolis.llm.backends.scripted import Scripted
from metropolis.rules.metrics import EUCLIDEAN, Geodesic
from metropolis.runtime.beginning import RADIUS_MAX, VELOCITY_MAX
from metropolis.runtime.check_world import check_world
from metropolis.runtime.simulation import RunResult, Simulation
from metropolis.sim.profiles import load_profile
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError
from metropolis.world.base import Agent
from metropolis.world.entities import Entity
from metropolis.world.transaction import Transaction
from tests.runtime.walkers import Meadow, Walker, author


def walkers(world: Meadow) -> list[Walker]:
    return [Walker(name) for name in world.names]


@pytest.mark.parametrize(
    ("attribute", "value", "sentence"),
    [
        (
            "perception_radius",
            math.nan,
            "perception_radius is nan; it should be a number, at least",
        ),
        ("perception_radius", -1, "perception_radius is -1"),
        ("perception_radius", "2", "perception_radius is '2'"),
        ("max_velocity", None, "max_velocity is None"),
        ("max_velocity", math.inf, "max_velocity is infinite"),
        ("max_velocity", 1e30, r"max_velocity is too large; it should be at most 1e\+09"),
        ("max_velocity", 10**400, "max_velocity is too large"),
        ("perception_radius", 1e30, r"perception_radius is too large; it should be at most 1e\+14"),
        ("perception_radius", 10**400, "perception_radius is too large"),
        ("joint_radius", -(10**400), "joint_radius is too large"),
        ("joint_radius", math.nan, "joint_radius is nan"),
        ("step_s", 0, "the world 'meadow', metadata: step_s is 0"),
        ("metric", Geodesic(np.zeros((12, 12), bool)), "it should be a grid map"),
        ("names", [], "there are no agents"),
        ("places", [(math.nan, 0.0)], "begins at .*nan.*, where nothing can be"),
    ],
)
def test_a_world_that_makes_no_sense_is_refused_first(
    tmp_path: Path, attribute: str, value: Any, sentence: str
) -> None:
    world = Meadow(2)
    setattr(world, attribute, value)
    with pytest.raises(MetropolisError, match=sentence):
        Simulation(world, walkers(world), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    world = Meadow(2)
    assert Simulation(world, walkers(world), out=tmp_path / "run").run(1).steps == 1


@pytest.mark.parametrize("steps", ["12", 2.5, None, True])
def test_steps_that_are_no_number_are_told(steps: Any) -> None:
    world = Meadow(2)
    with pytest.raises(MetropolisError, match="it should be a whole number"):
        Simulation(world, walkers(world)).run(steps)


@pytest.mark.parametrize(
    ("world", "agents", "sentence"),
    [
        ("minimal", [], "the world is 'minimal'; it should be a metropolis.World"),
        (Meadow(2), "ann", "the agents are 'ann'; they should be a sequence of agents"),
        (Meadow(2), None, "the agents are None"),
        (Meadow(2), [3, 4], "an agent is 3; it should be a metropolis.Agent, named"),
    ],
)
def test_parts_of_a_wrong_type_are_told(world: Any, agents: Any, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        Simulation(world, agents)


@pytest.mark.parametrize("world", [None, 3, lambda: 3])
def test_what_is_checked_is_a_world(world: Any) -> None:
    with pytest.raises(MetropolisError, match=r"it should (be one|make a metropolis\.Scenario)"):
        check_world(world)


def test_resuming_to_fewer_steps_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    world = Meadow(2)
    Simulation(world, walkers(world), out=tmp_path, about={"steps": 5}).run(5)
    before = (tmp_path / "run.json").read_bytes()
    run = Simulation(world, walkers(world), out=tmp_path, resume=True, about={"steps": 3})
    with pytest.raises(MetropolisError, match="come to step 5 already; it cannot end at 3"):
        run.run(3)
    assert (tmp_path / "run.json").read_bytes() == before
    assert run.run(7).steps == 7


def test_a_client_with_a_journal_serves_one_run(tmp_path: Path) -> None:
    world, client = Meadow(2), Client(Scripted())
    Simulation(world, walkers(world), client, out=tmp_path / "one").run(3)
    with pytest.raises(MetropolisError, match="the client was another run's and is closed"):
        Simulation(world, walkers(world), client, out=tmp_path / "two")


def test_two_runs_on_the_same_instances_take_their_own_time() -> None:
    llm = VirtualInstances(Scripted(), load_profile("llama-3-8b/l4"), 1)

    def run() -> RunResult:
        world = Meadow(1, side=2)
        return Simulation(world, walkers(world), llm, mode="lockstep").run(9)

    first, second = run(), run()
    assert 0 < second.makespan_s == pytest.approx(first.makespan_s)


@dataclass
class Doer(Agent):
    name: str
    does: Any = None
    kept: list[Any] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return self.does


class Stage(Meadow):
    async def resolve(self, cluster: Transaction) -> None:
        pass


@pytest.mark.parametrize("action", [{1: 2}, {(1, 2): 3}, object(), 1j, "\ud800"])
def test_an_action_that_cannot_be_written_is_told_of(action: Any) -> None:
    with pytest.raises(MetropolisError, match="step 0: what was done or written is not plain"):
        Simulation(Stage(1), [Doer("w00", action)]).run(1)


@pytest.mark.parametrize("kept", [math.inf, math.nan, "\ud800"])
def test_an_agent_that_json_cannot_keep_is_not_saved(tmp_path: Path, kept: Any) -> None:
    with pytest.raises(MetropolisError, match=r"the agent 'w00' .* cannot be saved"):
        Simulation(Stage(1), [Doer("w00", None, [kept])], out=tmp_path).run(1)


def test_draws_before_the_run_do_not_outlive_its_seed() -> None:
    class Early(Doer):
        def __post_init__(self) -> None:
            self.random.random()

        async def proceed(self, observation: Any, llm: Any) -> Any:
            return self.random.random()

    one, other = (Simulation(Stage(1), [Early("w00")], seed=seed).run(1) for seed in (1, 2))
    assert one.history[0].actions != other.history[0].actions


class Far(Stage):
    """Far from the origin, where float32 tells only half units apart."""

    metric = EUCLIDEAN

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity("w00", (4_649_776.3, 500_000.7), "agent")]

    async def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            member.move((member.position[0] + 0.6, member.position[1] + 0.6))


def test_a_trace_far_from_the_origin_can_be_written(tmp_path: Path) -> None:
    Simulation(Far(1, metric=EUCLIDEAN), [Doer("w00")], out=tmp_path).run(40)
    assert read_trace(tmp_path / "trace.parquet").steps == 40


def test_a_trace_takes_a_negative_joint_radius_for_none(tmp_path: Path) -> None:
    Simulation(Stage(1, joint=-1), [Doer("w00")], out=tmp_path).run(2)
    assert read_trace(tmp_path / "trace.parquet").meta.joint_radius == 0


@pytest.mark.parametrize("rule", ["versioned", "conservative"])
def test_the_largest_bounds_are_accepted(rule: str) -> None:
    world = Meadow(2)
    world.perception_radius, world.max_velocity = RADIUS_MAX, VELOCITY_MAX
    assert Simulation(world, walkers(world), Scripted(author), rule=rule).run(2).steps == 2
