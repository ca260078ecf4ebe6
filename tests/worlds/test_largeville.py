"""LargeVille: towns of their own, and the history of each mode."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest

from metropolis import Client, Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.maps.town import alderbrook
from metropolis.runtime.live.result import RunResult
from metropolis.store.embedded import EmbeddedServer
from metropolis.types import MetropolisError
from metropolis.workers import leases
from metropolis.worlds.largeville.people import renamings
from metropolis.worlds.smallville import town_profiles


def test_towns_of_25_people_each_with_a_name_of_their_own() -> None:
    scenario = make_scenario("largeville", agents=1010)
    names = [agent.name for agent in scenario.agents]
    assert len(set(names)) == 1010
    assert names[:25] == [profile.name for profile in town_profiles()]
    width = alderbrook().map.width
    assert scenario.world.map is not None
    assert scenario.world.map.width == 41 * width
    for number, agent in enumerate(scenario.agents):
        town = number // 25
        own = set(names[25 * town : 25 * town + 25])
        assert agent.profile.at[0] // width == town
        known = set(agent.profile.relations)
        assert known <= own or town == 40, "only the last town is not full"
        x, y = agent.profile.at
        assert not scenario.world.map.walls[y, x]


def test_texts_name_the_people_of_the_town() -> None:
    first = town_profiles()
    old = {name for profile in first for name in (profile.name, profile.first_name)}
    for renaming in renamings(first, 3, seed=5)[1:]:
        for profile in first:
            told = str(renaming.profile(profile, 0))
            assert not any(f"{name} " in told or f"{name}'" in told for name in old)


def test_ten_thousand_people_have_names() -> None:
    first = town_profiles()
    towns = renamings(first, 400, seed=0)
    names = {renaming.text(profile.name) for renaming in towns for profile in first}
    assert len(names) == 10_000
    assert all(re.fullmatch(r"[A-Z][a-zé]+ (de )?[A-Z][a-zé]+", name) for name in names)
    with pytest.raises(MetropolisError, match=r"no more surnames for \w+; .* about 630 towns"):
        renamings(first, 1000, seed=0)


def test_the_seed_names_people() -> None:
    one, same, other = (
        [agent.name for agent in make_scenario("largeville", agents=50, seed=seed).agents]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_every_mode_tells_the_same_history() -> None:
    results = []
    for mode in ("lockstep", "out_of_order"):
        scenario = make_scenario("largeville", agents=30)
        client = Client(Scripted(scenario.author))
        results.append(Simulation(scenario.world, scenario.agents, client, mode=mode).run(540))
    assert results[0].history_sha256 == results[1].history_sha256
    talks = [event for record in results[0].history for event in record.events]
    assert talks, "somebody has talked"
    town = np.arange(30) // 25
    assert (results[0].trace.positions[..., 0] // alderbrook().map.width == town).all()


class Slow(Scripted):
    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.004)
        return await super().complete(request)


def test_claims_that_workers_lose_change_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**how: Any) -> RunResult:
        scenario = make_scenario("largeville", agents=30)
        client = Client(Slow(scenario.author))
        return Simulation(scenario.world, scenario.agents, client, **how).run(4)

    expected = run(mode="lockstep")
    monkeypatch.setattr(leases, "BEATS", 0.25)  # renewed too late
    with EmbeddedServer() as server:
        found = run(store=server.url, workers=2, lease_s=0.06)  # a step takes 0.1 s
        counts = server.store(server.runs()[0]).inspect().counts
    assert counts["expired"] > 0
    assert found.history_sha256 == expected.history_sha256
    assert found.calls == expected.calls > 600


def test_nobody_is_too_few() -> None:
    with pytest.raises(MetropolisError, match="at least"):
        make_scenario("largeville", agents=0)
