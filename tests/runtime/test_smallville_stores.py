"""The same hours of SmallVille in memory and in stores: growing memories, and conversations."""

from __future__ import annotations

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.embedded import EmbeddedServer
from metropolis.world.scenario import make_scenario
from tests.runtime.purchases import same

STEPS = 60


def run(store: str, workers: int | str = 1) -> RunResult:
    town = make_scenario("smallville")
    llm = Scripted(town.author)
    return Simulation(town.world, town.agents, llm, seed=3, store=store, workers=workers).run(STEPS)


@pytest.fixture(scope="module")
def whole() -> RunResult:
    return run("memory")


@pytest.mark.parametrize("workers", [1, 3, "ray:2"])
def test_the_town_is_the_same_in_a_store(
    shared: EmbeddedServer, whole: RunResult, workers: int | str
) -> None:
    assert whole.calls > 100
    same(run(shared.url, workers), whole)
