"""A small random world for tests: walkers that pick up, drop, shout, talk and remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from metropolis.llm.base import Request
from metropolis.rules.metrics import CHEBYSHEV, PLANE_METRICS, Metric
from metropolis.types import Position
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.transaction import Transaction
from metropolis.world.view import View


class Meadow(World):
    """Walkers and apples on `places`, by default a square of `side` tiles."""

    name = "meadow"

    def __init__(
        self,
        walkers: int,
        *,
        side: int = 12,
        radius: float = 2,
        velocity: float = 1,
        joint: float | None = None,
        metric: Metric = CHEBYSHEV,
        places: Sequence[Position] = (),
    ) -> None:
        self.names = [f"w{i:02}" for i in range(walkers)]
        self.perception_radius, self.max_velocity = radius, velocity
        self.places = places or [(x, y) for x in range(side) for y in range(side)]
        self.apples = side
        self.joint_radius, self.metric = joint, metric

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        draw = Random(seed)
        empty = {"bag": 0, "last": ""}
        walkers = [Entity(n, draw.choice(self.places), "agent", empty) for n in self.names]
        apples = [
            Entity(f"apple{i}", draw.choice(self.places), "apple", {"bites": 0})
            for i in range(self.apples)
        ]
        return [*walkers, *apples]

    def step_from(self, position: Position, move: int) -> Position:
        """Return the reachable place with index `move`."""
        within = [
            place
            for place in self.places
            if self.metric.within(position, place, 0, self.max_velocity)
        ]
        return within[move % len(within)]

    def observe(self, view: View) -> Any:
        return {
            "at": view.position,
            "near": [(a.name, a.position, a["last"]) for a in view.agents()],
            "apples": [(t.name, t["bites"]) for t in view.things("apple")],
            "heard": [(e.source, e["word"]) for e in view.events("shout")],
            "luck": view.random.random(),
        }

    async def resolve(self, cluster: Transaction) -> None:
        members = sorted(cluster, key=lambda m: m.name)
        for member in members:
            friends = member.agents(min(self.joint_radius or 0, self.perception_radius))
            if member.action["talk"] and friends:
                said = await member.ask(friends[0].name, f"{member.name} asks")
                member.write(last=said)
        for member in members:
            act = member.action
            place = self.step_from(member.position, act["move"])
            member.move(place)
            here = [t for t in member.things("apple", 0) if t["bites"] < 3]
            if act["eat"] and here:
                apple = here[0]
                member.write(apple.name, bites=apple["bites"] + 1)
                member.write(bag=member.me["bag"] + 1)
            if act["shout"]:
                member.emit("shout", place, word=act["shout"])


class RoundedMeadow(Meadow):
    """Its moves are fractions, which are rounded."""

    def __init__(self, draw: Random) -> None:
        v = draw.choice([0.1, 0.2, 0.3, 0.7, 1 / 3])
        radius = draw.choice([v, 2 * v, 5 * v, 1])
        super().__init__(
            draw.randint(2, 9),
            radius=radius,
            velocity=v,
            joint=draw.choice([-1, 0, 2 * v]),
            metric=draw.choice(list(PLANE_METRICS.values())),
            places=[(x * v, y * v) for x in range(-12, 12) for y in range(3)],
        )

    def step_from(self, position: Position, move: int) -> Position:
        dx, dy = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)][move % 5]
        to = position[0] + dx * self.max_velocity, position[1] + dy * self.max_velocity
        return to if self.metric.within(position, to, 0, self.max_velocity) else position


@dataclass
class Walker(Agent):
    name: str
    memory: list[str] = field(default_factory=list)
    talks: dict[int, str] = field(default_factory=dict)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.random.random() < 0.4:
            said = await llm.chat(f"{observation}", function="think", max_tokens=40)
            self.memory.append(said.text)
        return choose(self, observation)

    async def answer(self, question: Any, llm: Any) -> Any:
        said = await llm.chat(f"{question}: {self.memory[-2:]}", function="talk", max_tokens=30)
        self.talks[self.step] = said.text
        return said.text


@dataclass
class PlainWalker(Agent):
    """A walker without async."""

    name: str
    memory: list[str] = field(default_factory=list)
    talks: dict[int, str] = field(default_factory=dict)

    def proceed(self, observation: Any, llm: Any) -> Any:
        if self.random.random() < 0.4:
            self.memory.append(llm.chat(f"{observation}", function="think", max_tokens=40).text)
        return choose(self, observation)

    def answer(self, question: Any, llm: Any) -> Any:
        said = llm.chat(f"{question}: {self.memory[-2:]}", function="talk", max_tokens=30)
        self.talks[self.step] = said.text
        return said.text


def choose(walker: Walker | PlainWalker, observation: Any) -> dict[str, Any]:
    draw = Random(f"{observation}{walker.memory[-3:]}{walker.random.random()}")
    return {
        "move": draw.randrange(100),
        "eat": draw.random() < 0.5,
        "shout": f"hey {len(walker.memory)}" if draw.random() < 0.2 else "",
        "talk": draw.random() < 0.3,
    }


def author(request: Request, draw: Random) -> str:
    """Return answers of very different lengths that depend on the question."""
    words = Random(request.text).choices(["sun", "rain", "wind", "snow", "hail", "fog"], k=3)
    return " ".join(words * draw.choice([1, 1, 2, 8]))
