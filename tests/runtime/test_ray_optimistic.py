"""Optimistic runs whose agents decide on a real Ray cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.embedded import EmbeddedServer
from metropolis.world.scenario import make_scenario
from tests.runtime import killable
from tests.runtime.test_ray import STEPS, killed_during
from tests.runtime.walkers import Meadow, Walker, author

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return killable.simulation(tmp_path_factory.mktemp("whole") / "it", "memory").run(STEPS)


def test_the_history_survives_workers_that_are_killed(
    tmp_path: Path, valkey: EmbeddedServer, whole: Any
) -> None:
    run = killable.simulation(tmp_path / "it", valkey.url, "ray:2", mode="optimistic")
    assert len(set(killed_during(run, b"ray::_Host"))) == 3
    assert run.result().history_sha256 == whole.history_sha256
    assert run.result().calls == whole.calls
    bought = Counter((tmp_path / "bought").read_text().splitlines())
    assert max(bought.values()) == 1  # the run itself buys them


def test_agents_of_ours_decide_on_ray(valkey: EmbeddedServer) -> None:
    digests = set()
    for how in ({"store": "memory"}, {"store": valkey.url, "workers": "ray:2"}):
        scenario = make_scenario("smallville", agents=5, seed=2)
        llm = Client(Scripted(scenario.author))
        run = Simulation(scenario.world, scenario.agents, llm, seed=2, mode="optimistic", **how)  # type: ignore[arg-type]
        digests.add(run.run(120).history_sha256)
    assert len(digests) == 1


class Broken(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        raise KeyError("apple")


def test_errors_of_agents_name_them(valkey: EmbeddedServer) -> None:
    world = Meadow(3)
    agents = [Broken(name) for name in world.names]
    how: dict[str, Any] = {"mode": "optimistic", "store": valkey.url, "workers": "ray:1"}
    with pytest.raises(KeyError) as caught:
        Simulation(world, agents, Client(Scripted(author)), **how).run(3)
    assert "agent 'w00', in Broken.proceed" in caught.value.__notes__[-1]
