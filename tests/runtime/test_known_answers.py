"""A known answer comes as any other does: after the tasks that are ready have sent theirs."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metropolis import Agent, Client, Simulation
from metropolis.llm.backends.replay import Replay
from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.configuration import LIVE_MODES
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from tests.runtime.walkers import Meadow

STEPS = 6
SLOW = SimulatedFleet.uniform("llama-3-8b/l4", 1)


@dataclass
class Counter(Agent):
    """Each of its tasks says how many answers the agent has had before."""

    name: str
    answers: int = 0
    heard: str = ""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        async def ask(number: int) -> str:
            answer = await llm.chat(f"question {number} after {self.answers} answers")
            self.answers += 1
            return str(answer.text)

        self.heard = "".join(await asyncio.gather(ask(0), ask(1)))
        return {"move": (zlib.crc32(self.heard.encode()) % 3 - 1, 0)}


class Field(Meadow):
    """Walkers that only move."""

    async def resolve(self, cluster: Any) -> None:
        for member in cluster:
            x = member.position[0] + member.action["move"][0]
            if 0 <= x < 9:
                member.move((x, member.position[1]))


def lived(backend: Any, out: Path | None = None, mode: str = "out_of_order") -> str:
    world = Field(4, side=9)
    agents = [Counter(name) for name in world.names]
    return Simulation(world, agents, Client(backend), mode=mode, out=out).run(STEPS).history_sha256


def author(request: Any, _: Any) -> str:
    return f"{zlib.crc32(request.text.encode())}"


@pytest.mark.parametrize("mode", LIVE_MODES)
def test_the_order_of_tasks_is_that_of_a_slow_model(tmp_path: Path, mode: str) -> None:
    slow = lived(VirtualInstances(Scripted(author), SLOW), tmp_path / "run", "lockstep")
    assert lived(VirtualInstances(Scripted(author), SLOW), mode=mode) == slow
    assert lived(Scripted(author), mode=mode) == slow
    assert lived(Replay(tmp_path / "run" / "journal.jsonl"), mode=mode) == slow
