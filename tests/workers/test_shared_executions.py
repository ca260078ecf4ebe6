"""Executions that differ only by their steps share their data while they wait in memory."""

from __future__ import annotations

from datetime import datetime

import pytest
from msgspec.structs import replace

from metropolis import Simulation
from metropolis.store.execution import Execution
from metropolis.workers.cluster_step import ClusterSteps, repeats
from metropolis.world.entities import Entity
from metropolis.world.view import Reads
from metropolis.worlds import smallville
from metropolis.worlds.smallville.world import SmallVille

SHARED = ("actions", "writes", "events", "calls", "observed", "resolved", "clusters")


def test_sleepers_share_all_but_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Execution] = []
    original = ClusterSteps.execution

    def execution(self: ClusterSteps) -> Execution:
        found.append(original(self))
        return found[-1]

    monkeypatch.setattr(ClusterSteps, "execution", execution)
    scenario = smallville.make()
    profiles = [agent.profile for agent in scenario.agents]
    town = SmallVille(scenario.world.map, profiles, start=datetime.fromisoformat("2023-02-13"))
    Simulation(town, scenario.agents).run(6)
    for agents in {one.agents for one in found if one.step == 5}:
        before, after = (
            next(one for one in found if (one.step, one.agents) == (step, agents))
            for step in (4, 5)
        )
        assert before.step != after.step
        assert not before.writes
        for name in SHARED:
            assert getattr(before, name) is getattr(after, name), name


READS = Reads({}, {}, {})
IDLE = Execution(3, (0,), {"ann": None}, {}, [], {}, observed={"ann": READS}, resolved={})


@pytest.mark.parametrize(
    "other",
    [
        {"agents": (0, 1)},
        {"actions": {"ann": "waves"}},
        {"writes": {"ann": Entity("ann", (0, 0))}},
        {"events": ["a cry"]},
        {"calls": {0: ["a call"]}},
        {"observed": {"ann": Reads({}, {}, {})}},
        {"clusters": ["another"]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_step_that_differs_shares_nothing(other: dict[str, object]) -> None:
    assert repeats(replace(IDLE, step=4, attempt=9), IDLE)
    changed = replace(IDLE, **other)
    assert not repeats(changed, IDLE)
    assert not repeats(IDLE, changed)
