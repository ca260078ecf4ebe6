"""The store of a whole run does not grow with its steps."""

from __future__ import annotations

import uuid
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live import executor
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.embedded import EmbeddedServer
from tests.runtime.test_edges import stored
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 120


class Forgetful(Walker):
    """Remembers only what it uses."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        action = await super().proceed(observation, llm)
        del self.memory[:-3]
        self.talks.clear()
        return action


def test_a_whole_run(
    tmp_path: Path, shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "RELEASE_S", 0.0)  # release without delay
    world, out = Meadow(8, side=10, joint=1), tmp_path / uuid.uuid4().hex
    agents = [Forgetful(name) for name in world.names]
    llm = Client(Scripted(author))
    sizes = []
    keys = []
    for record in Simulation(world, agents, llm, out=out, store=shared.url).steps(STEPS):
        if record.step % 2 == 0:
            store = stored(shared, out)
            sizes.append(store.inspect().memory_bytes)
            keys.append(shared.client.dbsize())
    # Single values depend on how far agents are ahead: on a busy machine, most of the later ones.
    for measured in (sizes, keys):
        assert min(measured[40:]) < 1.1 * median(measured[5:20]), measured
