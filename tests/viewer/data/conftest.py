"""A small run in a folder, which tests must not change, and copies of it, which they may."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.world.scenario import make_scenario

AGENTS, STEPS = 6, 60
WORLD = "minimal"


def simulation(out: Path, *, simulated: bool = True, **fields: object) -> Simulation:
    """A run of the world `WORLD`."""
    scenario = make_scenario(WORLD, agents=AGENTS, seed=1)
    backend: Scripted | VirtualInstances = Scripted(scenario.world.author)
    if simulated:
        backend = VirtualInstances(backend, SimulatedFleet.uniform("llama-3-8b/l4", 1))
    return Simulation(scenario.world, scenario.agents, Client(backend), out=out, **fields)


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run with texts of calls."""
    folder = tmp_path_factory.mktemp("viewer") / "green"
    simulation(folder, keep_text=True).run(STEPS)
    return folder


@pytest.fixture
def run_copy(shared_run: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copied: Path = copytree(shared_run, tmp_path / "green")
    return copied
