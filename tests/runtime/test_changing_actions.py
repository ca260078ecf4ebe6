"""An action counts as it was when the agent returned it, in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from metropolis import Agent, Client, Entity, Simulation, World
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances

SIDE = 5


class Square(World):
    name = "square"
    perception_radius, joint_radius, max_velocity = 3, 2, 1

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(name, (i % 3, i // 3), "agent") for i, name in enumerate("abcdef")]

    def observe(self, view: Any) -> Any:
        return [event["said"] for event in view.events()]

    async def resolve(self, cluster: Any) -> None:
        members = sorted(cluster, key=lambda member: member.name)
        for one in members:
            for other in members:
                far = max(abs(one.position[i] - other.position[i]) for i in (0, 1))
                if one.name < other.name and one.action["asks"] and far <= 2:
                    one.emit("talk", said=await one.ask(other.name, one.action["say"]))
        for one in members:
            dx, x = one.action["walk"], one.position[0]
            one.move((min(max(x + dx, 0), SIDE), one.position[1]))
            one.emit("say", said=one.action["say"])


@dataclass
class Changes(Agent):
    """Answers change the action."""

    name: str
    plan: dict[str, Any] = field(default_factory=dict)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        words = "nothing"
        if self.random.random() < 0.5:
            words = (await llm.chat(f"{self.name} {observation}", max_tokens=9)).text
        step = self.random.choice([-1, 0, 1])
        self.plan = {"walk": step, "say": words, "asks": self.random.random() < 0.3}
        return self.plan

    async def answer(self, question: Any, llm: Any) -> Any:
        self.plan["say"] = f"changed by {question}"
        self.plan["walk"] = 0
        return self.name


@dataclass
class Goes(Changes):
    """A task that goes on changes the action."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        action = dict(await super().proceed(observation, llm))

        async def later() -> None:
            for i in range(9):
                await asyncio.sleep(0)
                action["say"] = f"changed {i}"

        self._task = asyncio.ensure_future(later())
        return action


@dataclass
class Decides(Changes):
    """Some actions need no model."""

    def routine(self, observation: Any) -> Any:
        self.plan = {"walk": 1, "say": "as always", "asks": False}
        return self.plan

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return self.routine(observation)


@dataclass
class Asks(Changes):
    """One of them asks the others."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return {**await super().proceed(observation, llm), "asks": True}


@dataclass
class Remembers(Decides):
    """All of them need no model; an answer changes what the next one is."""

    def routine(self, observation: Any) -> Any:
        said = self.plan.get("say", "nothing")
        self.plan = {"walk": 1, "say": said[-20:], "asks": True}
        return self.plan


def run(kinds: Sequence[type[Changes]], mode: str, **options: Any) -> str:
    author: Backend = Scripted(lambda request, random: "yes " * random.randrange(1, 9))
    if not options:  # a store has real time
        author = VirtualInstances(author, SimulatedFleet.uniform("llama-3-8b/l4", 2))
    agents = [kinds[i % len(kinds)](name) for i, name in enumerate("abcdef")]
    simulation = Simulation(Square(), agents, Client(author), mode=mode, **options)
    return simulation.run(12).history_sha256


@pytest.mark.parametrize("kinds", [[Changes], [Goes], [Asks, Decides], [Remembers]])
def test_every_mode_equals_lockstep(kinds: Sequence[type[Changes]]) -> None:
    expected = run(kinds, "lockstep")
    for mode in ("sequential", "out_of_order", "optimistic"):
        assert run(kinds, mode) == expected
    assert run(kinds, "out_of_order", store="embedded") == expected
