"""The city: ways between towns, trains, and the history of each mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis import Agent, Client, Simulation, check_world
from metropolis.llm.backends.scripted import Scripted
from metropolis.types import MetropolisError
from metropolis.world.record import StepRecord
from metropolis.worlds.city import make
from metropolis.worlds.city.atlas import CityAtlas
from metropolis.worlds.city.people import visits
from metropolis.worlds.city.terrain import (
    EAST,
    PERIOD,
    SEATS,
    TOWNS,
    WEST,
    Railway,
    city_map,
    parts,
    town_map,
)
from metropolis.worlds.city.world import City
from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.dialogue import (
    CONVERSATION,
    Preparation,
    Relation,
    Turn,
    Utterance,
)
from metropolis.worlds.smallville.geography import Atlas, Tile
from metropolis.worlds.smallville.health import Health
from metropolis.worlds.smallville.world import Action, Doing, Observation

RAILWAY = Railway()
ATLAS = CityAtlas(3)
GRID = city_map(3)
PLACES = sorted(
    tile
    for arenas in ATLAS.places.values()
    for things in arenas.values()
    for tiles in things.values()
    for tile in tiles
)


def test_residents_know_their_towns_alone() -> None:
    scenario = make(agents=150)
    assert len({agent.name for agent in scenario.agents}) == 150
    width = town_map().width
    commuters, friends = 0, 0
    for agent in scenario.agents:
        profile, (x, y) = agent.profile, agent.profile.at
        assert scenario.world.map is not None
        assert not scenario.world.map.walls[y, x]
        home = TOWNS[x // width]
        work = parts(profile.workplace)[1] or home
        hosts = [parts(place)[1] for _, place in visits(" ".join(profile.relations.values()))]
        assert parts(profile.home)[1] == home
        assert {parts(sector)[1] for sector in agent.known} == {home, work, *hosts}
        assert home not in hosts
        commuters += work != home
        friends += bool(hosts)
    assert commuters >= 30
    assert friends >= 30


@given(
    st.sampled_from(PLACES),
    st.sampled_from(PLACES),
    st.booleans(),
    st.integers(0, 30),
)
@settings(max_examples=30, deadline=None)
def test_a_way_leads_over_free_tiles_and_with_the_trains(
    here: Tile, there: Tile, rides: bool, number: int
) -> None:
    walk = ATLAS.of(number, rides).walk(here, there)
    assert (walk[0], walk[-1]) == (here, there)
    for (x, y), (next_x, next_y) in pairwise(walk):
        assert abs(next_x - x) + abs(next_y - y) == 1
        assert not GRID.walls[next_y, next_x]
        if RAILWAY.direction((x, y)) and RAILWAY.direction((next_x, next_y)):
            assert next_x - x == RAILWAY.direction((x, y))
    hops = abs(here[0] // town_map().width - there[0] // town_map().width)
    on_track = any(RAILWAY.direction(tile) for tile in walk)
    assert on_track == (hops > 1 or (rides and hops == 1))


def test_names_of_places() -> None:
    assert parts("Heron Inn of Ashford: taproom") == ("Heron Inn: taproom", "Ashford")
    assert parts("") == ("", "")
    assert len(set(TOWNS)) == len(TOWNS)


@dataclass
class Traveller(Agent):
    """Goes to and fro between two tiles, talks to everybody, and shows what it perceives."""

    name: str
    goals: list[Tile]
    _atlas: Atlas = field(repr=False)
    talked: list[str] = field(default_factory=list)

    async def proceed(self, observation: Observation, llm: Any) -> Action:
        here = (observation.x, observation.y)
        if here == self.goals[0]:
            self.goals.append(self.goals.pop(0))
        seen = [one.name for one in observation.nearby]
        new = [name for name in seen if name not in self.talked]
        if new:
            self.talked = [*self.talked, new[0]][-3:]
        what = f"sees {seen}, hears {observation.heard}, talks {observation.conversation}"
        said = f"hello from {here}" if self.random.random() < 0.2 else ""
        move = self._atlas.toward(here, self.goals[0])
        return Action(move, Doing(what), new[0] if new and not said else "", said)

    async def answer(self, question: Any, llm: Any) -> Any:
        match question:
            case Preparation():
                return Relation("", ())
            case Turn():
                return Utterance("hello", len(question.lines) > 1)
        return "it"


def _travellers(count: int = 10) -> tuple[City, list[Traveller]]:
    """People at stations, half of whom go to another town at once; the others stay about."""
    profiles = town_profiles()[:count]
    agents, placed = [], []
    for number, profile in enumerate(profiles):
        side, spot = (EAST if number % 4 < 2 else WEST), number * 3
        town = 0 if side == EAST else 1
        platform = RAILWAY.boarding(town, side, spot)[0]
        far = RAILWAY.boarding(town + side, side, spot)[0]
        near = RAILWAY.boarding(town, side, spot + 7)[0]
        atlas = ATLAS.of(spot, rides=True)
        agents.append(Traveller(profile.name, [near if number % 3 == 0 else far, platform], atlas))
        placed.append(replace(profile, at=platform))
    return City(city_map(2), placed), agents


def _bodies(
    history: Sequence[StepRecord], at: dict[str, Tile]
) -> Iterator[tuple[StepRecord, dict[str, Tile]]]:
    """Each step, with everybody's tile after it; changes `at`."""
    for record in history:
        for name, body in record.writes.items():
            assert body is not None
            at[name] = (int(body.position[0]), int(body.position[1]))
        yield record, dict(at)


def test_who_rides_meets_only_those_in_the_carriage() -> None:
    world, agents = _travellers()
    names = [agent.name for agent in agents]
    start = {one.name: one.at for one in world._residents}
    history = Simulation(world, agents, mode="lockstep").run(300).history
    aboard, together, apart, talks = set(), 0, 0, 0
    for record, at in _bodies(history, start):
        step = record.step + 1
        carriage = {}
        for name in names:
            if side := RAILWAY.direction(at[name]):
                seat = RAILWAY.seat(at[name], step)
                assert seat < SEATS, "a passenger is in a carriage"
                carriage[name] = side, at[name][0] - seat
        aboard |= set(carriage)
        for one in carriage:
            for other in names:
                if one == other:
                    continue
                seen = world.metric.perceives(at[one], at[other], world.perception_radius)
                assert seen == (carriage[one] == carriage.get(other))
                together, apart = together + seen, apart + (not seen)
        for event in record.events:
            if event.kind == CONVERSATION:
                one, other = (carriage.get(name) for name in (event.source, event["partner"]))
                assert one == other
                talks += one is not None
    assert len(aboard) >= 5
    assert talks > 1
    assert together > 100
    assert apart > 100


def test_random_schedules_tell_lockstep_s_history() -> None:
    check_world(*_travellers(8), seeds=(0,), steps=220, schedules=2)


def test_trains_come_every_period() -> None:
    track = RAILWAY.boarding(0, EAST, 0)[1]
    passing = [step for step in range(3 * PERIOD) if RAILWAY.seat(track, step) == 0]
    assert len(passing) == 3
    assert RAILWAY.seat((track[0] + 7, track[1]), passing[0] + 7) == 0


@pytest.fixture(scope="module")
def morning() -> dict[str, Any]:
    """Residents of two towns from half past eight, on their way to work, in both modes."""
    results = {}
    for mode in ("lockstep", "out_of_order"):
        scenario = make(agents=50, start=datetime(2023, 2, 13, 8, 30))
        client = Client(Scripted(scenario.author))
        results[mode] = (
            scenario,
            Simulation(scenario.world, scenario.agents, client, mode=mode).run(360),
        )
    return results


def test_every_mode_tells_the_same_history(morning: dict[str, Any]) -> None:
    scenario, result = morning["out_of_order"]
    assert result.history_sha256 == morning["lockstep"][1].history_sha256
    start = {agent.name: agent.profile.at for agent in scenario.agents}
    home = {name: x // town_map().width for name, (x, _) in start.items()}
    places = [at for _, at in _bodies(result.history, dict(start))]
    there = [name for name in home if places[-1][name][0] // town_map().width != home[name]]
    assert len(there) >= 2, "commuters are in the other town"
    pairs = [
        (e.source, e["partner"]) for r in result.history for e in r.events if e.kind == CONVERSATION
    ]
    assert any(home[one] != home[two] for one, two in pairs)


def test_the_laws_of_the_town_hold(morning: dict[str, Any]) -> None:
    scenario, result = morning["out_of_order"]
    health = Health(scenario.world, [agent.profile for agent in scenario.agents])
    for record in result.history:
        health.read(record)
    report = health.report({agent.name: agent.memory for agent in scenario.agents})
    assert report["walls_crossed"] == report["duplicate_memories"] == 0
    assert report["days"][0]["work_hours"] > 0.1


def test_bad_numbers_of_residents() -> None:
    with pytest.raises(MetropolisError, match="at least one"):
        make(agents=0)
    with pytest.raises(MetropolisError, match=f"names for {len(TOWNS)} towns, not for"):
        make(agents=len(TOWNS) * 25 + 1)
