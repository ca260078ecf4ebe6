"""A yard of walkers, sound as it is, and worlds in which one thing each is wrong."""

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from gymnasium import spaces

from metropolis import Agent, Choice, Entity, Scenario, Transaction, View, World

WALKS = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
NAMES = ["ann", "bob", "cleo", "dan", "eve", "finn"]
COUNTS: dict[str, int] = {}


class Yard(World):
    """Walkers see 3 tiles far and pick up the apples they stand on."""

    name, perception_radius, max_velocity = "yard", 3, 1
    observation_space = spaces.Dict(near=spaces.Sequence(Choice(NAMES)), luck=spaces.Discrete(5))
    action_space = Choice(WALKS)
    side = 9

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        draw = Random(seed)
        place = lambda: (draw.randrange(self.side), draw.randrange(self.side))  # noqa: E731
        walkers = [Entity(name, place(), "agent", {"apples": 0}) for name in NAMES]
        apples = [Entity(f"apple {i}", place(), "apple") for i in range(12)]
        return [*walkers, *apples]

    def observe(self, view: View) -> Any:
        near = tuple(body.name for body in view.agents())
        return {"near": near, "luck": view.random.randrange(5)}

    def resolve(self, cluster: Transaction) -> None:
        for walker in sorted(cluster, key=lambda member: member.name):
            self.walk(walker, walker.action)
            for apple in walker.things("apple", 0)[:1]:
                walker.remove(apple.name)
                walker.write(apples=walker.me["apples"] + 1)

    def walk(self, walker: Any, by: tuple[int, int]) -> None:
        x, y = (min(max(p + d, 0), self.side - 1) for p, d in zip(walker.position, by, strict=True))
        walker.move((x, y))


@dataclass
class Walker(Agent):
    name: str
    met: list[str] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.met += observation["near"]
        return WALKS[(len(self.met) + observation["luck"]) % 5]


class ReadsFarAway(Yard):
    def observe(self, view: View) -> Any:
        view.entity("finn")
        return super().observe(view)


class MovesTooFast(Yard):
    def walk(self, walker: Any, by: tuple[int, int]) -> None:
        pace = 2 if walker.step == 5 else 1
        super().walk(walker, (pace * by[0], pace * by[1]))


class UsesRandom(Yard):
    def resolve(self, cluster: Transaction) -> None:
        for walker in sorted(cluster, key=lambda member: member.name):
            self.walk(walker, random.choice(WALKS))


class DependsOnOrder(Yard):
    """Two who stand beside an apple both reach for it: whoever comes first has it."""

    side = 5

    def resolve(self, cluster: Transaction) -> None:
        for walker in cluster:
            self.walk(walker, walker.action)
            for apple in walker.things("apple", 1)[:1]:
                walker.remove(apple.name)
                walker.write(apples=walker.me["apples"] + 1)


class SharesADict(Yard):
    def __init__(self) -> None:
        self.visits: dict[str, int] = {}

    def resolve(self, cluster: Transaction) -> None:
        super().resolve(cluster)
        for walker in cluster:
            self.visits[walker.name] = self.visits.get(walker.name, 0) + 1


class KeepsAClassAttribute(Yard):
    visits: list[str] = []  # noqa: RUF012

    def observe(self, view: View) -> Any:
        self.visits.append(view.name)
        return super().observe(view)


class KeepsAGlobal(Yard):
    def observe(self, view: View) -> Any:
        COUNTS[view.name] = COUNTS.get(view.name, 0) + 1
        return super().observe(view)


class HidesACache(Yard):
    """What others see depends on who has come by before, in the order of execution."""

    _seen = 0

    def observe(self, view: View) -> Any:
        HidesACache._seen += len(view.agents())
        return {**super().observe(view), "luck": Random(HidesACache._seen).randrange(5)}


class BodiesChange(Yard):
    count = itertools.count()

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return super().reset(seed=seed + next(self.count), options=options)


class DrawsInReset(Yard):
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        random.random()
        return super().reset(seed=seed, options=options)


class ForgetsABody(Yard):
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return super().reset(seed=seed, options=options)[1:]


class BeginsNowhere(Yard):
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [*super().reset(seed=seed, options=options), Entity("sun", (0, 1e12))]


class WalksBackwards(Yard):
    max_velocity = -1


class NarrowSpace(Yard):
    action_space = Choice(WALKS[:4])


class OtherObservations(Yard):
    observation_space = spaces.Discrete(3)


class NoSpaces(Yard):
    observation_space = None  # type: ignore[assignment]
    action_space = None  # type: ignore[assignment]


class DrawingAgent(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        return WALKS[np.random.randint(5)]


class Unrepeatable(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        return Random().choice(WALKS)


@dataclass
class Forgetful(Walker):
    """Goes by what it does not save."""

    _met: int = 0

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self._met += 1
        return WALKS[self._met // 7 % 5]


@dataclass
class Unsaveable(Walker):
    thing: Any = field(default_factory=object)


@dataclass
class Untyped(Walker):
    """The type of a field does not name that of its items, of which there are some at one step."""

    steps: dict = field(default_factory=dict)  # type: ignore[type-arg]

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.steps.clear()
        if self.step == 20:
            self.steps[20] = True
        return WALKS[0]


@dataclass
class Branches(Walker):
    """Sends equal requests in tasks that have waited."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        async def branch(number: int) -> str:
            await llm.chat(f"the first of {number}")
            answer: str = (await llm.chat("the second")).text
            return answer

        texts = await asyncio.gather(*map(branch, range(3)))
        return WALKS[crc32("|".join(texts).encode()) % 5]


@dataclass
class Hasty(Walker):
    """Goes by the answer that arrives first."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        tasks = [asyncio.ensure_future(llm.chat(f"{number}")) for number in range(3)]
        early, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*tasks)
        return WALKS[min(number for number, task in enumerate(tasks) if task in early)]


@dataclass
class Gossip(Walker):
    """Writes into a dict that belongs to all."""

    news: dict[str, int] = field(default_factory=dict)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.news[self.name] = self.news.get(self.name, 0) + len(observation["near"])
        return WALKS[sum(self.news.values()) % 5]


def gossips() -> list[Agent]:
    news: dict[str, int] = {}
    return [Gossip(name, news=news) for name in NAMES]


def each(kind: Callable[[str], Agent]) -> Callable[[], list[Agent]]:
    return lambda: [kind(name) for name in NAMES]


LATE = "schedule", r"seed 0, out of order .* differs from lockstep: step \d+, the action of .*"

PLANTED: dict[str, tuple[type[Yard], Callable[[], list[Agent]], str, str]] = {
    "reads far away": (
        ReadsFarAway,
        each(Walker),
        "causality",
        r"seed 0: step 0, agent '\w+': reads the entity 'finn', and no entity of that name is "
        "within the perception radius 3",
    ),
    "moves too fast": (
        MovesTooFast,
        each(Walker),
        "causality",
        r"seed 0: step 5, agent '\w+': moves from .* to .*, 2 away: 1 further than the velocity 1",
    ),
    "uses random": (
        UsesRandom,
        each(Walker),
        "randomness",
        r"seed 0, step 0, agent '\w+': UsesRandom.resolve draws from the global `random`; draw "
        "from `random` of the view or the agent, which does not depend on order",
    ),
    "depends on order": (
        DependsOnOrder,
        each(Walker),
        "order",
        "seed 0, lockstep with the members of clusters in another order differs from "
        r"lockstep: step \d+, the entity '\w+'\['state'\]\['apples'\] is \d instead of \d; process "
        r"them in a fixed order, for example `sorted\(cluster, key=lambda member: member.name\)`",
    ),
    "shares a dict": (
        SharesADict,
        each(Walker),
        "state",
        r"seed 0, step 0: the world's attribute 'visits' changed, and is {'ann': 1, .* now; what "
        "changes must be written to entities or belong to one agent",
    ),
    "agents share a dict": (
        Yard,
        gossips,
        "state",
        r"seed 0, step \d+: the dict that the agents 'ann' \(at .news\), 'bob' \(at .news\) and 4 "
        "more share changed, and is .* now; what changes must be written to entities or belong to "
        "one agent",
    ),
    "keeps a class attribute": (
        KeepsAClassAttribute,
        each(Walker),
        "state",
        "seed 0, step 0: the class attribute KeepsAClassAttribute.visits changed, .*",
    ),
    "keeps a global": (
        KeepsAGlobal,
        each(Walker),
        "state",
        "seed 0, step 0: the global tests.world.planted.COUNTS changed, .*",
    ),
    "hides a cache": (
        HidesACache,
        each(Walker),
        "repetition",
        "seed 0, a second lockstep run differs from lockstep: step .*",
    ),
    "draws in an agent": (
        Yard,
        each(DrawingAgent),
        "randomness",
        "seed 0, step 0, agent 'ann': DrawingAgent.proceed draws from the global `numpy.random`;.*",
    ),
    "cannot be repeated": (
        Yard,
        each(Unrepeatable),
        "repetition",
        r"seed 0, a second lockstep run differs from lockstep: step \d, the action of "
        r"'\w+'.* is .* instead of .*",
    ),
    "is not reset": (
        BodiesChange,
        each(Walker),
        "reset",
        "seed 0, World.reset returns something else the second time",
    ),
    "draws in reset": (
        DrawsInReset,
        each(Walker),
        "randomness",
        "seed 0, World.reset draws from a global generator; use its seed",
    ),
    "forgets a body": (
        ForgetsABody,
        each(Walker),
        "reset",
        "seed 0: agents and bodies do not match at 'ann'; World.reset should return one entity .*",
    ),
    "begins nowhere": (
        BeginsNowhere,
        each(Walker),
        "reset",
        r"seed 0: 'sun' begins at \(0.0, 1000000000000.0\), where nothing can be: its .*",
    ),
    "acts outside the space": (
        NarrowSpace,
        each(Walker),
        "space",
        r"seed 0, step \d+, agent '\w+': the action is \(0, -1\), which is not in the space "
        r"Choice.*",
    ),
    "observes outside the space": (
        OtherObservations,
        each(Walker),
        "space",
        r"seed 0, step 0, agent 'ann': the observation is {.*}, which is not in the "
        r"space Discrete\(3\)",
    ),
    "has no spaces": (
        NoSpaces,
        each(Walker),
        "space",
        "the world 'yard' has no observation_space; it should be a gymnasium.Space",
    ),
    "forgets": (
        Yard,
        each(Forgetful),
        "saving",
        r"seed 0, a run saved and resumed at step 15 differs from lockstep: step \d+, the action "
        "of .*; an agent keeps something that is not saved",
    ),
    "cannot be saved": (
        Yard,
        each(Unsaveable),
        "saving",
        r"seed 0, step 0: the field 'thing' of the agent 'ann' \(Unsaveable\) cannot be .*",
    ),
    "asks the same in parallel": (Yard, each(Branches), *LATE),
    "goes by the first answer": (Yard, each(Hasty), *LATE),
    "has a field of an unnamed type": (
        Yard,
        each(Untyped),
        "saving",
        r"seed 0, step 21: the field 'steps' of the agent 'ann' \(Untyped\) is \{20: True.* and "
        r"would be restored as \{'20': True.*; values should have the type of their field.*",
    ),
}
"""What is wrong -> the world, its agents, the kind of the first finding, and its sentence."""


def yard(world: type[Yard] = Yard, agents: Callable[[], list[Agent]] | None = None) -> Scenario:
    return Scenario(world(), (agents or each(Walker))())
