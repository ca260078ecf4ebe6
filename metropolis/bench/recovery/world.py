"""The world of the recovery bench: walkers whose moves depend on a model's answers.

They meet, hear each other and talk, so that a lost, doubled or late step changes the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.scenario import Scenario
from metropolis.world.spaces import FreeText
from metropolis.world.transaction import Transaction
from metropolis.world.view import View

AGENTS, STEPS = 8, 200
TILES_PER_AGENT = 50
MEMORY = 5


@dataclass
class Field(World):
    """Walkers see three tiles far and talk to adjacent walkers."""

    names: list[str]
    side: int
    name, perception_radius, max_velocity, joint_radius = "field", 3.0, 1.0, 1.0
    observation_space = action_space = FreeText()

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:  # noqa: ARG002
        """Anywhere."""
        draw = Random(seed).randrange
        return [Entity(name, (draw(self.side), draw(self.side)), "agent") for name in self.names]

    def observe(self, view: View) -> str:
        """Describe nearby walkers and heard words."""
        near = [(other.name, other.position) for other in view.agents()]
        heard = [event["words"] for event in view.events()]
        return f"{view.position} {near} {heard}"

    async def resolve(self, cluster: Transaction) -> None:
        """Talk, be heard, walk."""
        members = sorted(cluster, key=lambda member: member.name)
        for member in members:
            beside = member.agents(1.0)
            if beside and member.random.random() < 0.5:
                member.emit("says", words=await member.ask(beside[0].name, member.action))
        for member in members:
            draw = Random(f"{member.action} {member.name}")
            x, y = (min(max(at + draw.choice((-1, 0, 1)), 0), self.side) for at in member.position)
            member.move((x, y))


@dataclass
class Asker(Agent):
    """Calls the model in two of three steps, and remembers the answers."""

    name: str
    memory: list[str] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> str:
        """Act on the model's answer."""
        if self.random.random() < 1 / 3:
            return f"on {self.memory[-1:]}"
        answer = await llm.chat(f"{observation} {self.memory}", function="act", max_tokens=16)
        self.memory = [*self.memory, answer.text][-MEMORY:]
        return str(answer.text)

    async def answer(self, question: Any, llm: Any) -> str:
        """Say the model's answer."""
        answer = await llm.chat(f"{question} {self.memory}", function="talk", max_tokens=16)
        return str(answer.text)


def make(*, agents: int | None = None, seed: int = 0) -> Scenario:  # noqa: ARG001
    """Make a scenario of walkers."""
    names = [f"walker {i}" for i in range(agents or AGENTS)]
    side = round((len(names) * TILES_PER_AGENT) ** 0.5)
    return Scenario(Field(names, side), [Asker(name) for name in names], steps=STEPS)
