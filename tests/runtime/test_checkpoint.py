"""A checkpoint holds the exact state of the world between two steps."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.runtime.folder import checkpoint
from metropolis.runtime.folder.checkpoint import (
    KEPT_MOST,
    Checkpoint,
    Checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from metropolis.runtime.live.checkpointing import Checkpointer
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.base import FencedOutError
from metropolis.store.embedded import EmbeddedServer
from metropolis.world.base import Agent
from tests.runtime.walkers import Meadow, choose


@dataclass
class Quick(Agent):
    """Decides at once, so that the floor rises as fast as possible."""

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

    def keep(path: Path, content: Checkpoint, run: str) -> None:
        write_checkpoint(path, content, run)
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


@given(moves=st.lists(st.integers(1, 50), min_size=1, max_size=80))
def test_the_first_the_newest_and_an_even_choice_of_others_stay(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int]
) -> None:
    kept = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints")
    written = [sum(moves[:count]) for count in range(1, len(moves) + 1)]
    for step in written:
        kept.add(Checkpoint(step, [], [], {}, 0.0, None))
    steps = kept.steps()
    assert set(steps) <= set(written)
    assert (steps[0], steps[-1]) == (written[0], written[-1])
    assert len(steps) == min(len(written), KEPT_MOST)
    even = (steps[-1] - steps[0]) / (KEPT_MOST - 1)
    assert max((b - a for a, b in pairwise(steps)), default=0) <= 2 * even + max(moves)
    found = kept.newest(written[-1] - 1)
    assert (found and found.step) == (steps[-2] if steps[1:] else None)


def test_a_process_that_another_has_replaced_writes_none(
    tmp_path: Path, shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the replaced process reads from the store may belong to later steps."""
    world, out = Meadow(4, side=9), tmp_path / "it"
    run = Simulation(
        world,
        [Quick(name) for name in world.names],
        out=out,
        store=shared.url,
        checkpoint_wall_s=0,
    )
    write = Checkpointer.write

    def taken_over(self: Checkpointer, *arguments: Any) -> None:
        if self.step > 5:
            key = json.loads((out / "store.json").read_text())["run"]
            shared.client.hincrby(f"metropolis:{{{key}}}:state", "fence", 1)
        write(self, *arguments)

    monkeypatch.setattr(Checkpointer, "write", taken_over)
    with pytest.raises(FencedOutError, match="was taken over"):
        run.run(40)
    assert max(Checkpoints(out / "checkpoints").steps()) <= 5
