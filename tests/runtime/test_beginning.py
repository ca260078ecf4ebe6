"""Invalid setups are refused before anything is written, and leave nothing behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis.llm import Client
from metropolis.llm.backends.scripted import Scripted
from metropolis.rules.metrics import EUCLIDEAN, Geodesic
from metropolis.runtime.checks.check_world import check_world
from metropolis.runtime.live.setup import RADIUS_MAX, VELOCITY_MAX
from metropolis.runtime.live.simulation import RunResult, Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError
from metropolis.world.base import UNDECIDED, Agent
from metropolis.world.entities import Entity
from metropolis.world.scenario import Scenario
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
            "perception_radius is nan; it should be an int or a float, at",
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
        ("step_s", 0, "the world's step_s is 0; it should be a number of seconds above 0"),
        ("step_s", -10.0, "step_s is -10.0"),
        ("step_s", "10", "step_s is '10'"),
        ("step_s", math.nan, "step_s is nan"),
        ("step_s", math.inf, r"step_s is inf; .* at most 1e\+06"),
        ("step_s", True, "step_s is True"),
        ("step_s", None, "step_s is None"),
        ("metric", "euclidean", "the world's metric is 'euclidean'; it should be one of metropo"),
        ("metric", Geodesic, "the world's metric is <class '.*Geodesic'>; it should be one of"),
        ("metric", None, "the world's metric is None"),
        ("start", datetime(2023, 2, 13, tzinfo=UTC), "the local time, without time zone"),
        ("start", "2023-02-13", "the world's start is '2023-02-13'; it should be a datetime"),
        ("name", 3, "the world's name is 3; it should be a text"),
        ("map", "town", "the world's map is 'town'; it should be a metropolis"),
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


def test_what_is_no_function_is_told_before_the_run_begins() -> None:
    world = Meadow(2)
    simulation = Simulation(world, walkers(world), seed=np.int64(3))
    with pytest.raises(MetropolisError, match="on_step is 3; it should be a function, or None"):
        simulation.run(2, on_step=3)  # type: ignore[arg-type]

    async def waits(_: object) -> None: ...

    with pytest.raises(MetropolisError, match="on_step is an async function; it should be a plain"):
        simulation.run(2, on_step=waits)
    assert simulation.run(np.int64(2)).seed == 3


@pytest.mark.parametrize("steps", ["12", 2.5, None, True])
def test_steps_that_are_no_number_are_told(steps: Any) -> None:
    world = Meadow(2)
    with pytest.raises(MetropolisError, match="it should be a whole number"):
        Simulation(world, walkers(world)).run(steps)


@pytest.mark.parametrize(
    ("world", "agents", "sentence"),
    [
        ("minimal", [], "the world is 'minimal'; it should be a metropolis.World"),
        (Meadow(2), "ann", "the agents are 'ann'; they should be a list of metropolis.Agent"),
        (Meadow(2), None, "the agents are None"),
        (Meadow(2), {"ann": Walker("ann")}, "the agents are {'ann': "),
        (Meadow(2), [3, 4], r"agents\[0\] is 3; it should be a metropolis.Agent"),
        (Meadow(2), [Walker("ann"), Walker], r"agents\[1\] is <class '.*Walker'>; it should be a"),
        (Meadow(2), [Walker(3)], r"the name of agents\[0\], a Walker, is 3; it should be a text"),  # type: ignore[arg-type]
        (Meadow(2), [Walker("")], r"the name of agents\[0\], a Walker, is ''"),
    ],
)
def test_parts_of_a_wrong_type_are_told(world: Any, agents: Any, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        Simulation(world, agents)
    with pytest.raises(MetropolisError, match=sentence):
        Scenario(world, agents)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"steps": "24"}, "the scenario's steps is '24'; it should be a whole number, at least 1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": None}, "steps is None"),
        ({"steps": True}, "steps is True"),
        ({"steps": 0}, "steps is 0"),
        ({"functions": "plan"}, "the scenario's functions are 'plan'; they should be a tuple of"),
        ({"author": "Ann"}, "the scenario's author is 'Ann'; it should be a function"),
        ({"story": None}, "the scenario's story is None; it should be a function"),
    ],
)
def test_fields_of_a_scenario_of_a_wrong_type_are_told(
    fields: dict[str, Any], sentence: str
) -> None:
    world = Meadow(2)
    with pytest.raises(MetropolisError, match=sentence):
        Scenario(world, walkers(world), **fields)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"llm": "http://ann:hunter2@h"}, "llm is a text; it should be a metropolis.Client, a"),
        ({"llm": ""}, "llm is a text"),
        ({"llm": 0}, "llm is 0"),
        ({"llm": Scripted}, "llm is <class '.*Scripted'>"),
        ({"out": 3}, "out is 3; it should be the path of a folder, or None"),
        ({"out": b"run"}, "out is b'run'"),
        ({"out": ""}, "out is ''"),
        ({"store": 3}, "store is 3; it should be memory, embedded, a URL or FILE.py:CLASS"),
        ({"store": Path("run")}, r"store is PosixPath\('run'\)"),
        ({"about": "mine"}, "about is 'mine'; it should be a dictionary, or None"),
        ({"about": [1]}, r"about is \[1\]"),
        ({"about": {3: 4}}, "about has the key 3; its keys should be texts"),
        ({"about": {"x": {1, 2}}}, r"about\['x'\] is {1, 2}; it should be plain data"),
        ({"about": {"x": math.nan}}, r"about\['x'\] is nan; it should be plain data"),
        ({"options": [1]}, r"options is \[1\]; it should be a dictionary, or None"),
        ({"stall_s": "5"}, "stall_s is '5'; it should be a number, at least 0"),
        ({"stall_s": None}, "stall_s is None"),
        ({"stall_s": -1}, "stall_s is -1"),
        ({"stall_s": math.nan}, "stall_s is nan"),
        ({"stall_s": True}, "stall_s is True"),
        ({"lease_s": "5"}, "lease_s is '5'"),
        ({"checkpoint_wall_s": None}, "checkpoint_wall_s is None"),
        ({"seed": "0"}, "seed is '0'; it should be a whole number from 0 to 9223372036854775807"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"seed": None}, "seed is None"),
        ({"seed": True}, "seed is True"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": math.nan}, "seed is nan"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
    ],
)
def test_arguments_of_a_wrong_type_are_told(
    tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    world = Meadow(2)
    with pytest.raises(MetropolisError, match=f"^{sentence}") as told:
        Simulation(world, walkers(world), **({"out": tmp_path / "run"} | arguments))
    assert "hunter2" not in str(told.value)
    assert not (tmp_path / "run").exists()


class Returning(Meadow):
    """Its reset returns the given value."""

    given: Any

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Any:
        return self.given


class Waiting(Meadow):
    """Its reset is a coroutine function."""

    async def reset(self, *, seed: int, options: Mapping[str, Any]) -> Any:  # type: ignore[override]
        return []


def body(name: Any = "walker 0", place: Any = (0, 0), **fields: Any) -> Entity:
    return Entity(name, place, **({"kind": "agent"} | fields))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "Returning.reset returned None; it should return a list of metropolis.Entity"),
        (3, "Returning.reset returned 3; it should"),
        ("ann", "Returning.reset returned 'ann'; it should"),
        ({"ann": (0, 0)}, r"Returning.reset returned {'ann': \(0, 0\)}; it should"),
        (body(), "Returning.reset returned Entity"),
        (
            [body(), ("ann", (0, 0))],
            r"Returning.reset returned a list with \('ann', \(0, 0\)\); it",
        ),
        ([None], "Returning.reset returned a list with None"),
        ([body(3)], "Returning.reset returned an entity 3 whose name is 3; it should be a text"),
        ([body(kind=None)], "returned an entity 'walker 0' whose kind is None; it should be a te"),
        ([body(state=3)], "returned an entity 'walker 0' whose state is 3; it should be a dictio"),
        ([body(place=(math.nan, 0))], r"'walker 0' begins at \(nan, 0.0\), where nothing can be"),
        ([body(place=(0, math.inf))], r"'walker 0' begins at \(0.0, inf\), where nothing can be"),
        ([body(), body()], "two entities are named 'walker 0'; names are unique"),
        ([], "agents and bodies do not match at 'walker 0'"),
    ],
)
def test_a_beginning_of_a_wrong_type_is_told(tmp_path: Path, given: Any, sentence: str) -> None:
    world = Returning(1)
    world.given = given
    with pytest.raises(MetropolisError, match=sentence):
        Simulation(world, [Walker("walker 0")], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(MetropolisError, match=sentence):
        check_world(world, [Walker("walker 0")])


def test_a_beginning_that_must_be_awaited_is_told() -> None:
    with pytest.raises(MetropolisError, match=r"^Waiting.reset is an async function; it should be"):
        Simulation(Waiting(1), [Walker("walker 0")])


def test_an_observation_that_must_be_awaited_is_told() -> None:
    class Looking(Meadow):
        async def observe(self, view: Any) -> Any:
            return super().observe(view)

    with pytest.raises(MetropolisError, match=r"^Looking.observe is an async function; it should"):
        Simulation(Looking(1), [Walker("w00")])


def test_a_routine_that_must_be_awaited_is_told() -> None:
    class Idler(Walker):
        async def routine(self, observation: Any) -> Any:
            return UNDECIDED

    with pytest.raises(MetropolisError, match=r"^Idler.routine is an async function; it should be"):
        Simulation(Meadow(1), [Idler("w00")])


def test_a_frozen_agent_is_told() -> None:
    @dataclass(frozen=True)
    class Stone(Agent):
        name: str

        async def proceed(self, observation: Any, llm: Any) -> Any:
            return None

    with pytest.raises(MetropolisError, match=r"agents\[0\], a Stone, is a frozen dataclass"):
        Simulation(Meadow(1), [Stone("w00")])


@pytest.mark.parametrize("world", [None, 3, lambda: 3])
def test_what_is_checked_is_a_world(world: Any) -> None:
    with pytest.raises(MetropolisError, match=r"it should (be a World|make a metropolis\.Sc)"):
        check_world(world)


def test_resuming_to_fewer_steps_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    world = Meadow(2)
    Simulation(world, walkers(world), out=tmp_path, about={"steps": 5}).run(5)
    before = (tmp_path / "run.json").read_bytes()
    run = Simulation(world, walkers(world), out=tmp_path, resume=True, about={"steps": 3})
    with pytest.raises(MetropolisError, match="already reached step 5; it cannot end at 3"):
        run.run(3)
    assert (tmp_path / "run.json").read_bytes() == before
    assert run.run(7).steps == 7


RECORDS = ("history.jsonl", "calls.jsonl", "journal.jsonl")


def test_resuming_to_fewer_steps_than_were_recorded_loses_none(tmp_path: Path) -> None:
    """The checkpoints after the first steps are missing, as after a kill."""
    world = Meadow(2)
    whole = Simulation(world, walkers(world), out=tmp_path).run(6)
    (tmp_path / "checkpoints/6.json.gz").unlink()
    files = {tmp_path / name: (tmp_path / name).read_bytes() for name in RECORDS}
    run = Simulation(world, walkers(world), out=tmp_path, resume=True)
    assert run.first_step == 0
    with pytest.raises(MetropolisError, match="already reached step 6; it cannot end at 3"):
        run.run(3)
    assert {path: path.read_bytes() for path in files} == files
    assert run.run(6).history_sha256 == whole.history_sha256
    assert not run.notes


def test_a_client_with_a_journal_serves_one_run(tmp_path: Path) -> None:
    world, client = Meadow(2), Client(Scripted())
    Simulation(world, walkers(world), client, out=tmp_path / "one").run(3)
    with pytest.raises(MetropolisError, match="the client was another run's and is closed"):
        Simulation(world, walkers(world), client, out=tmp_path / "two")


def test_two_runs_on_the_same_instances_take_their_own_time() -> None:
    llm = VirtualInstances(Scripted(), SimulatedFleet.uniform("llama-3-8b/l4", 1))

    def run() -> tuple[Simulation, RunResult]:
        world = Meadow(1, side=2)
        simulation = Simulation(world, walkers(world), llm, mode="lockstep")
        return simulation, simulation.run(9)

    (first, ended), (_, second) = run(), run()
    assert 0 < second.makespan_s == pytest.approx(ended.makespan_s)
    assert first.result().makespan_s == ended.makespan_s, "its time ends with the run"


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
    with pytest.raises(
        MetropolisError, match=r"step 0, agent 'w00': its action .* cannot be kept as JSON"
    ):
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
    """Far from the origin, where float32 resolves only half units."""

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
