"""Agents run less far ahead while nearly all executions are wrong."""

from __future__ import annotations

import pytest

from metropolis import Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.workers.optimistic import ahead_limit
from metropolis.workers.optimistic.ahead_limit import AHEAD_MAX, AHEAD_MIN, SAMPLE, AheadLimit


def review(limit: AheadLimit, wrong: int) -> int:
    """The limit after further SAMPLE executions, `wrong` of which are wrong."""
    for _ in range(wrong):
        limit.was_wrong()
    for _ in range(SAMPLE):
        limit.began()
    return limit.steps


def test_the_limit_follows_the_share_of_wrong_executions() -> None:
    limit = AheadLimit()
    assert review(limit, SAMPLE * 9 // 10) == AHEAD_MAX
    assert review(limit, SAMPLE * 98 // 100) == AHEAD_MAX // 2
    assert review(limit, SAMPLE * 9 // 10) == AHEAD_MAX // 2
    assert review(limit, 0) == AHEAD_MAX
    assert [review(limit, SAMPLE) for _ in range(9)][-1] == AHEAD_MIN


def test_a_crowd_of_walkers_starts_fewer_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    def executions(sample: int) -> int:
        monkeypatch.setattr(ahead_limit, "SAMPLE", sample)
        began = 0

        class Counted(AheadLimit):
            def began(self) -> None:
                nonlocal began
                began += 1
                super().began()

        monkeypatch.setattr("metropolis.workers.optimistic.worker.AheadLimit", Counted)
        scenario = make_scenario("minimal", agents=12)
        fleet = SimulatedFleet.uniform("llama-3-8b/l4", 1)
        client = Client(VirtualInstances(Scripted(scenario.author), fleet))
        Simulation(scenario.world, scenario.agents, client, mode="optimistic").run(60)
        return began

    assert executions(100) < 0.8 * executions(10**9)
