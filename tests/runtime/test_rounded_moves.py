"""Worlds whose velocity is no whole number: steps of it are rounded, and add up to more than it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis import Agent, Client, Entity, Simulation, World, verify
from metropolis.llm.backends.scripted import Scripted
from metropolis.rules.metrics import MANHATTAN, Metric
from metropolis.runtime.checks.check_world import findings
from metropolis.runtime.replays.modes import MODES
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances

FLEET = SimulatedFleet.uniform("llama-3-8b/l4", 1)


class Line(World):
    name = "line"
    joint_radius = 0

    def __init__(self, velocity: float, radius: float, apart: int) -> None:
        self.max_velocity, self.perception_radius, self.apart = velocity, radius, apart

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        here = -18 * self.max_velocity
        there = here + self.perception_radius + self.apart * self.max_velocity
        return [Entity("still", (here, 0), "agent"), Entity("walker", (there, 0), "agent")]

    def observe(self, view: Any) -> Any:
        return [body.name for body in view.agents()]

    def resolve(self, cluster: Any) -> None:
        for member in cluster:
            x = member.position[0]
            to = (x - self.max_velocity, 0)
            if member.action == "walk" and self.metric.within((x, 0), to, 0, self.max_velocity):
                member.move(to)


@dataclass
class Still(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return f"sees {observation}"


@dataclass
class Walker(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        await llm.chat("walk?", max_tokens=50)
        return "walk"


def run(world: Line, mode: str, **options: Any) -> Any:
    client = Client(VirtualInstances(Scripted(lambda request, random: "yes " * 50), FLEET))
    agents = [Still("still"), Walker("walker")]
    return Simulation(world, agents, client, mode=mode, **options).run(world.apart + 3)


def check(world: Line) -> None:
    expected = run(world, "lockstep")
    for mode in ("out_of_order", "optimistic"):
        assert run(world, mode).history_sha256 == expected.history_sha256
    conservative = run(world, "out_of_order", rule="conservative")
    assert conservative.history_sha256 == expected.history_sha256
    for mode in MODES:  # positions of traces are rounded once more
        assert replay(expected.trace, mode, Setting.of(expected.trace.meta, FLEET)).calls


def test_steps_that_are_rounded_up_are_verified(tmp_path: Path) -> None:
    """0.2 + 0.1 is further from 0.2 than 0.1."""

    class Rises(Line):
        def resolve(self, cluster: Any) -> None:
            for member in cluster:
                member.move((member.position[0] + self.max_velocity, 0))

    world = Rises(0.1, 1, 4)
    run(world, "out_of_order", out=tmp_path / "run")
    agents = [Still("still"), Walker("walker")]
    assert verify(tmp_path / "run", Rises(0.1, 1, 4), agents).complete
    author = Scripted(lambda request, random: "yes").author
    found = findings(Rises(0.1, 1, 4), agents, author=author, seeds=[0], steps=5, schedules=1)
    assert {finding.kind for finding in found} <= {"space"}


@pytest.mark.parametrize(("velocity", "radius", "apart"), [(0.1, 1, 5), (1 / 3, 5 / 3, 7)])
def test_histories_equal_lockstep(velocity: float, radius: float, apart: int) -> None:
    check(Line(velocity, radius, apart))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([0.1, 0.2, 0.3, 0.7, 1 / 3]), st.sampled_from([0.8, 1, 1.5]), st.integers(1, 12)
)
def test_random_histories_equal_lockstep(velocity: float, radius: float, apart: int) -> None:
    check(Line(velocity, max(radius, 2 * velocity), apart))


class Pair(World):
    """Both write a thing that is exactly the velocity away; their distance is rounded up."""

    name = "pair"
    metric: Metric = MANHATTAN
    max_velocity = perception_radius = 0.7

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        places = {"a": (0.6, 0.8), "b": (-0.2, 0.2)}
        bodies = [Entity(name, at, "agent") for name, at in places.items()]
        return [*bodies, Entity("apple", (0.2, 0.5), "thing", {"by": None})]

    def observe(self, view: Any) -> Any:
        return view.entity("apple")["by"]

    def resolve(self, cluster: Any) -> None:
        for member in cluster:
            member.write("apple", by=member.action)


@dataclass
class Writer(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        for i in range(4 if (self.name == "a") == (self.step % 2 == 0) else 1):
            await llm.chat(f"{observation} {i}")
        return self.name


def test_two_writers_of_one_thing_are_one_cluster() -> None:
    def run_pair(mode: str, **options: Any) -> str:
        client = Client(VirtualInstances(Scripted(), FLEET))
        agents = [Writer("a"), Writer("b")]
        return Simulation(Pair(), agents, client, mode=mode, **options).run(6).history_sha256

    expected = run_pair("lockstep")
    assert run_pair("out_of_order") == run_pair("optimistic") == expected
    assert run_pair("out_of_order", rule="conservative") == expected
