"""A world keeps its author; worlds and agents of a run cannot start another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from metropolis import MetropolisError, Scenario, Simulation, check_world, fork, make_scenario
from metropolis.adapters.single import SingleAgentWorld
from metropolis.llm.backends.scripted import Scripted
from metropolis.world.entities import Entity
from metropolis.world.transaction import Transaction
from tests.runtime.walkers import Meadow, Walker, author

USED = "the agent 'w00' was used in a run"


def walkers(world: Meadow) -> list[Walker]:
    return [Walker(name) for name in world.names]


def test_the_author_of_a_scenario_answers_without_a_client() -> None:
    for name in ("minimal", "social"):
        known, forgotten = make_scenario(name), make_scenario(name)
        by_author = Simulation(known.world, known.agents, Scripted(known.world.author)).run(60)
        run = Simulation(forgotten.world, forgotten.agents).run(60)
        assert run.history_sha256 == by_author.history_sha256
        assert run.calls == by_author.calls > 0


def test_a_world_may_bring_its_author_itself() -> None:
    class Own(Meadow):
        def author(self, asked: Any, draw: Any) -> str:
            return author(asked, draw)

    told = Meadow(4)
    Scenario(told, (), author)
    own, plain = Own(4), Meadow(4)
    hashes = [Simulation(w, walkers(w)).run(12).history_sha256 for w in (told, own, plain)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_agents_live_in_one_run() -> None:
    world = Meadow(4)
    agents, copies = walkers(world), deepcopy(walkers(world))
    simulation, second = Simulation(world, agents), Simulation(world, agents)
    first = simulation.run(12)
    with pytest.raises(MetropolisError, match=USED):
        Simulation(world, agents)
    with pytest.raises(MetropolisError, match=USED):  # created before the first run
        second.run(12)
    with pytest.raises(MetropolisError, match=USED):
        Simulation(world, deepcopy(agents))
    assert Simulation(world, copies).run(12).history_sha256 == first.history_sha256


def test_a_simulation_that_was_not_run_uses_nothing_up() -> None:
    world = Meadow(4)
    agents = walkers(world)
    for _ in range(2):
        Simulation(world, agents)
    Simulation(world, agents).run(3)


def test_agents_that_have_lived_are_refused_everywhere(tmp_path: Path) -> None:
    world = Meadow(4)
    agents, run = walkers(world), tmp_path / "run"
    Simulation(world, agents, out=run).run(12)
    with pytest.raises(MetropolisError, match=USED):
        check_world(world, agents)
    with pytest.raises(MetropolisError, match=USED):
        check_world(lambda: Scenario(world, agents))
    with pytest.raises(MetropolisError, match=USED):
        fork(run, world, agents, at=6, out=tmp_path / "branch")
    with pytest.raises(MetropolisError, match=USED):
        Simulation(world, agents, out=run, resume=True)
    town = make_scenario("minimal")
    Simulation(town.world, town.agents).run(2)
    env = SingleAgentWorld(town.world, others=town.agents[1:])
    with pytest.raises(MetropolisError, match="was used in a run"):
        env.reset()


def test_agents_restored_by_a_resumed_run_begin_no_other(tmp_path: Path) -> None:
    world = Meadow(4)
    Simulation(world, walkers(world), out=tmp_path / "run").run(12)
    agents = walkers(world)
    Simulation(world, agents, out=tmp_path / "run", resume=True)
    with pytest.raises(MetropolisError, match=USED):
        Simulation(world, agents)


class Counting(Meadow):
    """Keeps state outside of its entities."""

    def __init__(self) -> None:
        super().__init__(4)
        self.visits: list[int] = []

    async def resolve(self, cluster: Transaction) -> None:
        self.visits.append(cluster.step)
        await super().resolve(cluster)


def test_a_world_that_a_run_has_changed_is_refused() -> None:
    world, sound = Counting(), Meadow(4)
    Simulation(world, walkers(world)).run(3)
    with pytest.raises(MetropolisError, match=r"has changed the world 'meadow' .*'visits'"):
        Simulation(world, walkers(world))
    runs = [Simulation(sound, walkers(sound)).run(12).history_sha256 for _ in range(2)]
    assert runs[0] == runs[1]


class Drawn(Meadow):
    """Draws its places from the seed."""

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        self.places = self.places[: 20 + seed]
        return super().reset(seed=seed, options=options)


def test_a_world_reset_for_another_simulation_is_refused() -> None:
    world = Drawn(4)
    simulation = Simulation(world, walkers(world), seed=5)
    Simulation(world, walkers(world), seed=1)
    with pytest.raises(MetropolisError, match=r"since the simulation was made \(its attribute 'pl"):
        simulation.run(3)


def test_a_refused_run_leaves_its_folder_and_its_store_free(tmp_path: Path) -> None:
    def simulation(world: Drawn, **how: Any) -> Simulation:
        return Simulation(world, walkers(world), store="embedded", out=tmp_path / "run", **how)

    world = Drawn(4)
    refused = simulation(world)
    world.places = []
    with pytest.raises(MetropolisError, match="since the simulation was made"):
        refused.run(3)
    assert not vars(world).get("_changed")  # no run has changed it
    assert simulation(Drawn(4), resume=True).run(3).steps == 3
