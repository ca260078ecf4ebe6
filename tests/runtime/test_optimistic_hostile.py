"""Optimistic runs of hostile and careless code: the history of lockstep, or one sentence."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.llm.client import Client
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import CausalityError, MetropolisError
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.randomness import keyed_random
from metropolis.world.transaction import Transaction
from metropolis.world.view import View

SIDE, WALKS = 12, [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


def author(request: Request, random: Random) -> str:
    return f"{random.randrange(1000)} " * random.randrange(1, 100)


class Field(World):
    """Walkers who see 4 tiles far."""

    name = "field"
    perception_radius: float = 4
    max_velocity = 1
    joint_radius = 0

    def __init__(self, agents: int = 8) -> None:
        self.names = [f"a{i}" for i in range(agents)]

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        draw = keyed_random(seed, "field", 0, "reset").randrange
        return [Entity(name, (draw(SIDE), draw(SIDE)), "agent", {"n": 0}) for name in self.names]

    def observe(self, view: View) -> Any:
        return sorted((body.name, body.position) for body in view.agents())

    def resolve(self, cluster: Transaction) -> Any:
        for member in cluster:
            self.walk(member, member.action)

    def walk(self, member: Any, by: Any) -> None:
        (x, y), (dx, dy) = member.position, by
        member.move((min(max(x + dx, 0), SIDE), min(max(y + dy, 0), SIDE)))


@dataclass
class Walker(Agent):
    """Walks by what it has heard so far."""

    name: str
    heard: list[str] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.random.random() < 0.4:
            self.heard.append((await llm.chat(f"{observation} {len(self.heard)}")).text)
        return self.walk()

    async def answer(self, question: Any, llm: Any) -> Any:
        self.heard.append((await llm.chat(f"{question} {self.step}", max_tokens=90)).text)
        return len(self.heard)

    def walk(self) -> tuple[int, int]:
        return WALKS[(zlib.crc32(f"{self.heard[-4:]}".encode()) + self.random.randrange(5)) % 5]


def history(
    world: World,
    agent: Callable[[str], Agent] = Walker,
    mode: str = "optimistic",
    seed: int = 2,
    steps: int = 25,
) -> str:
    backend = VirtualInstances(Scripted(author), SimulatedFleet.uniform("llama-3-8b/l4", 2))
    agents = [agent(f"a{i}") for i in range(8)]
    waste = 1.0 if mode == "optimistic" else None
    simulation = Simulation(
        world, agents, Client(backend), mode=mode, seed=seed, waste_budget=waste
    )
    return simulation.run(steps).history_sha256


class ReadsTwice(Field):
    """Its resolution reads, waits for a model, and reads the same again."""

    def observe(self, view: View) -> Any:
        return view.position

    async def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            before = [(body.name, body.position) for body in member.agents()]
            await member.ask(member.name, "well?")
            member.agents()
            member.write(saw=f"{before}")
            self.walk(member, member.action)


class Gropes(Field):
    """It tries what is out of reach, catches the errors, and waits for a model."""

    def observe(self, view: View) -> Any:
        return self.those_in_reach(view.entity)

    async def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            touch = partial(member.write, at=member.step)
            found = self.those_in_reach(touch if member.step % 2 else member.entity)
            await member.ask(member.name, "well?")
            member.write(found=found)
            self.walk(member, member.action)

    def those_in_reach(self, reach: Callable[[str], object]) -> list[str]:
        found = []
        for name in [*self.names, "nobody"]:
            with suppress(CausalityError):
                reach(name)
                found.append(name)
        return found


class Lazy:
    """What is seen when it is printed."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __repr__(self) -> str:
        return f"{[(body.name, body.position) for body in self.view.agents()]}"


class LooksLater(Field):
    def observe(self, view: View) -> Any:
        return Lazy(view)


@dataclass
class LooksTwice(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        await llm.chat("first", max_tokens=150)
        self.heard.append((await llm.chat(f"{observation}", max_tokens=50)).text)
        return self.walk()


class ChangesActions(Field):
    def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            member.action["k"] += 1
            self.walk(member, member.action.pop("walk"))


@dataclass
class ActsByMapping(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        return {"walk": await super().proceed(observation, llm), "k": 0}


@dataclass(frozen=True)
class Stays:
    pass


STAYS = Stays()


class ComparesByIdentity(Field):
    def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            if member.action is STAYS:
                member.write(n=member.me.state["n"] + 1)
            elif not isinstance(member.action, Stays):
                self.walk(member, member.action)


@dataclass
class ActsByIdentity(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        walk = await super().proceed(observation, llm)
        return STAYS if walk == (0, 0) else walk


@pytest.mark.parametrize(
    ("world", "agent"),
    [
        (ReadsTwice, Walker),
        (Gropes, Walker),
        (LooksLater, Walker),
        (LooksLater, LooksTwice),
        (ChangesActions, ActsByMapping),
        (ComparesByIdentity, ActsByIdentity),
    ],
)
def test_the_history_is_lockstep_s(
    world: Callable[[], World], agent: Callable[[str], Agent]
) -> None:
    for seed in range(3):
        assert history(world(), agent, seed=seed) == history(world(), agent, "lockstep", seed)


def test_an_action_that_cannot_be_copied_gets_a_sentence() -> None:
    @dataclass
    class ActsByLock(Walker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            return threading.Lock()

    with pytest.raises(
        MetropolisError, match=r"step 0, agent \'a\d\': its action .* cannot be copied"
    ):
        history(Field(), ActsByLock)


@pytest.mark.parametrize("joint", [None, 0, 2, inf])
def test_with_an_infinite_radius_all_wait_for_all(joint: float | None) -> None:
    class Omniscient(Field):
        perception_radius = inf
        joint_radius = joint  # type: ignore[assignment]

    with pytest.raises(MetropolisError, match="the world's perception_radius is infinite"):
        history(Omniscient())
    in_lockstep = history(Omniscient(), mode="lockstep")
    assert history(Omniscient(), mode="out_of_order") == in_lockstep


def test_a_new_name_gets_a_sentence() -> None:
    @dataclass
    class Renames(Walker):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            self.name = "somebody"
            return await super().proceed(observation, llm)

    with pytest.raises(MetropolisError, match="there is no body for the agent 'somebody'"):
        history(Field(), Renames)
