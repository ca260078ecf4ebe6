"""A checkpoint holds the world exactly as it was between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metropolis.runtime import checkpoint
from metropolis.runtime.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from metropolis.runtime.simulation import Simulation
from metropolis.world.base import Agent
from tests.runtime.walkers import Meadow, choose


@dataclass
class Quick(Agent):
    """Decides at once, so that the floor rises as fast as it can."""

    name: str
    memory: list[str] = field(default_factory=list)

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.random.random() < 0.1:
            self.memory.append((await llm.chat(f"{observation}", max_tokens=9)).text)
        return choose(self, observation) | {"talk": False}


def test_checkpoints_hold_the_world_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Checkpoint] = []

    def keep(path: Path, content: Checkpoint) -> None:
        write_checkpoint(path, content)
        written.append(read_checkpoint(path))

    monkeypatch.setattr(checkpoint, "write_checkpoint", keep)
    total = 0
    for seed in range(20):
        world = Meadow(Random(seed).randint(2, 9), side=15, radius=1)
        agents = [Quick(name) for name in world.names]
        run = Simulation(world, agents, seed=seed, out=tmp_path / str(seed), checkpoint_wall_s=0)
        records = list(run.steps(20))
        total += len(written)
        for found in written:
            entities = {entity.name: entity for entity in world.reset(seed=seed, options={})}
            for record in records[: found.step]:
                entities |= record.writes
            assert {entity.name: entity for entity in found.entities} == entities
            assert found.agents.keys() == set(world.names)
            assert found.events == records[found.step - 1].events
        written.clear()
    assert total > 60
