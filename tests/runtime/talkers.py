"""A world whose agents call their model in every possible way, for tests of traces."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from metropolis.llm import RefusedError
from metropolis.llm.base import Request
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.transaction import Member, Transaction
from metropolis.world.view import View

WAYS = ("nothing", "one", "chain", "gather", "nested", "fails", "stream", "leaves")
"""Ways in which an `async` agent calls; see `ask_in`."""
ALL_WAYS = (*WAYS, "begun", "lock")
"""Includes ways in which latencies decide which dependencies are observed."""


class Square(World):
    """Agents that walk on a square of `side` tiles, and talk with their neighbours."""

    name = "square"
    perception_radius = 2
    max_velocity = 1

    def __init__(self, agents: int, side: int, seed: int) -> None:
        self.names = [f"a{i}" for i in range(agents)]
        self.side, self.talks = side, seed

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        draw = Random(self.talks)
        return [
            Entity(name, (draw.randrange(self.side), draw.randrange(self.side)), "agent")
            for name in self.names
        ]

    def observe(self, view: View) -> Any:
        return [body.name for body in view.agents()]

    async def resolve(self, cluster: Transaction) -> None:
        """Hold talks one after the other, or concurrently with a last one after them, or none."""
        members = sorted(cluster, key=lambda member: member.name)
        draw = Random(f"{self.talks} {members[0].step} {[member.name for member in members]}")
        if len(members) > 1:
            talks = [(member, draw.randrange(100)) for member in members]
            if draw.random() < 0.5:
                await asyncio.gather(*(_talk(*talk) for talk in talks))
                await _talk(members[0], draw.randrange(100))
            else:
                for talk in talks:
                    await _talk(*talk)
        for member in members:
            x, y = member.position
            dx, dy = member.action
            place = min(self.side - 1, max(0, x + dx)), min(self.side - 1, max(0, y + dy))
            member.move(place)


async def _talk(member: Member, topic: int) -> None:
    around = [member.name, *(body.name for body in member.agents())]
    draw = Random(f"{member.name} {topic}")
    for turn in range(draw.randrange(3)):
        await member.ask(draw.choice(around), f"{member.name} on {topic}, {turn}")


@dataclass
class Talker(Agent):
    name: str
    seed: int = 0
    ways: tuple[str, ...] = WAYS

    async def proceed(self, observation: Any, llm: Any) -> Any:
        draw = Random(f"{self.seed} {self.name} {self.step}")
        await ask_in(draw.choice(self.ways), f"{self.name} at {self.step}", llm, draw)
        return draw.choice((-1, 0, 1)), draw.choice((-1, 0, 1))

    async def answer(self, question: Any, llm: Any) -> Any:
        draw = Random(f"{self.seed} {question}")
        await ask_in(draw.choice(self.ways), question, llm, draw)
        return "yes"


@dataclass
class PlainTalker(Agent):
    """Runs in a thread; makes one call after the other."""

    name: str
    seed: int = 0

    def proceed(self, observation: Any, llm: Any) -> Any:
        draw = Random(f"{self.seed} {self.name} {self.step}")
        self._ask(f"{self.name} at {self.step}", llm, draw)
        return draw.choice((-1, 0, 1)), draw.choice((-1, 0, 1))

    def answer(self, question: Any, llm: Any) -> Any:
        self._ask(question, llm, Random(f"{self.seed} {question}"))
        return "yes"

    def _ask(self, topic: str, llm: Any, draw: Random) -> None:
        for number in range(draw.randrange(3)):
            if draw.random() < 0.3:
                list(llm.stream(f"{topic} {number}", max_tokens=40))
            else:
                llm.chat(f"{topic} {number}", max_tokens=40)


async def ask_in(way: str, topic: str, llm: Any, draw: Random) -> None:
    """Make calls about `topic`; each way always makes the same calls."""

    async def chain(name: str, calls: int) -> None:
        for number in range(calls):
            await llm.chat(f"{topic} {name} {number}", function=name, max_tokens=60)

    async def branch(name: str) -> None:
        await asyncio.gather(chain(f"{name} left", 1), chain(f"{name} right", 2))
        await chain(name, 1)

    calls = draw.randrange(1, 4)
    match way:
        case "one":
            await chain("alone", 1)
        case "chain":
            await chain("chain", calls)
        case "gather":
            await asyncio.gather(*(chain(f"{i}", draw.randrange(1, 4)) for i in range(calls)))
            await chain("last", 1)
        case "nested":
            await asyncio.gather(*(branch(f"{i}") for i in range(calls)))
        case "begun":
            begun = asyncio.create_task(chain("begun", calls))
            await chain("own", 2)
            await begun
            await chain("last", 1)
        case "lock":
            lock = asyncio.Semaphore(2)

            async def locked(name: str) -> None:
                async with lock:
                    await chain(name, 1)

            await asyncio.gather(*(locked(f"{i}") for i in range(calls + 2)))
        case "fails":
            await chain("before", 1)
            failing = llm.chat(f"FAIL {topic}")
            found = await asyncio.gather(failing, chain("beside", 1), return_exceptions=True)
            assert isinstance(found[0], RefusedError)
            await chain("after", 1)
        case "leaves":
            async for _ in llm.stream(f"{topic} left", max_tokens=60):
                break
            await chain("after", 1)
        case "stream":
            async for piece in llm.stream(f"{topic} stream", max_tokens=60):
                await llm.chat(f"{topic} {piece}", max_tokens=20)


def author(request: Request, draw: Random) -> str:
    """Return answers of very different lengths."""
    if request.text.startswith("FAIL"):
        raise RefusedError("refused")
    words = Random(request.text)
    return " ".join(["word"] * words.choice([1, 2, 5, 20, 60]))
