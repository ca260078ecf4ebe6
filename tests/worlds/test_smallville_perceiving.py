"""What residents perceive, find new, and learn of the town."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from metropolis import Agent, Client, Simulation, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.maps.town import alderbrook
from metropolis.types import MetropolisError
from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.geography import Atlas
from metropolis.worlds.smallville.memory import IDLE
from metropolis.worlds.smallville.perceiving import attended, perceive
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.settings import Settings
from metropolis.worlds.smallville.spatial_memory import first_known
from metropolis.worlds.smallville.state import Activity
from metropolis.worlds.smallville.world import Observation, Seen, SmallVille

ATLAS = Atlas(alderbrook().map)
CAFE = ATLAS.places["Lantern Café"]["café"]
NAMES = [profile.name for profile in town_profiles()]


@dataclass
class Rater:
    """A model that answers 3; keeps the functions of its calls."""

    functions: list[str] = field(default_factory=list)

    async def chat(self, prompt: str, *, function: str, **_: Any) -> Any:
        self.functions.append(function)
        return type("Answer", (), {"text": "3"})


def resident(**settings: Any) -> Resident:
    return Resident(replace(town_profiles()[0], settings=Settings(**settings)), ATLAS)


def seen(name: str, at: tuple[int, int], doing: str, thing: str = "", state: str = "") -> Seen:
    return Seen(name, *at, doing, "Lantern Café: café", thing, state, False, 0, True)


def test_the_bandwidth_covers_all_events() -> None:
    """The resident's own, its object, another person and their object, unused objects."""
    me, (here, other) = resident(attention_bandwidth=9), (CAFE["chair"][0], CAFE["counter"][0])
    me.activity = Activity("eating", "Lantern Café: café", "chair", "in use", here)
    near = Observation(0, *here, (seen(NAMES[1], other, "serving", "counter", "full of cups"),))
    found = attended(me, near)
    assert [event.text for event in found[:2]] == [f"{me.name} is eating", "the chair is in use"]
    texts = {event.text for event in found}
    visible = abs(other[0] - here[0]) <= 4 and abs(other[1] - here[1]) <= 4
    assert visible, "the test needs a counter in sight of a chair"
    assert {f"{NAMES[1]} is serving", "the counter is full of cups"} <= texts
    assert len(found) == len(set(found)) <= 9
    me = resident(attention_bandwidth=3)
    me.activity = Activity("eating", "Lantern Café: café", "chair", "in use", here)
    assert attended(me, near) == found[:3]
    assert not any(event.object == IDLE for event in attended(resident(idle_objects=False), near))


def test_an_object_in_use_is_not_idle_where_it_is_used() -> None:
    here = CAFE["chair"][0]
    idle = {
        event.subject for event in attended(resident(attention_bandwidth=50), Observation(0, *here))
    }
    assert "Lantern Café: café: chair" in idle
    assert not any(subject.startswith("Lantern Café: kitchen") for subject in idle), "another room"
    user = seen(NAMES[1], here, "sitting", "chair", "taken")
    events = attended(resident(attention_bandwidth=1), Observation(0, *here, (user,)))
    assert [event.text for event in events] == [f"{NAMES[1]} is sitting"]
    two = attended(resident(attention_bandwidth=2), Observation(0, *here, (user,)))
    assert two[1].text == "the chair is taken"


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=25), st.integers(1, 4), st.booleans())
def test_new_is_what_is_not_among_the_last_remembered(
    doings: list[int], retention: int, rerates: bool
) -> None:
    me = resident(retention=retention, idle_objects=False, rerates=rerates)
    model = Rater()
    remembered: list[int] = []
    for number, doing in enumerate(doings):
        other = seen(NAMES[1], (me.bed[0], me.bed[1] + 1), f"doing {doing}")
        fresh = asyncio.run(perceive(me, Observation(number, *me.bed, (other,)), model))  # type: ignore[arg-type]
        if doing not in remembered[-retention:]:
            remembered.append(doing)
            assert [event.text for event in fresh] == [f"{NAMES[1]} is doing {doing}"]
        else:
            assert not fresh
    rated = remembered if rerates else set(remembered)
    assert model.functions == ["event_poignancy"] * len(rated)
    assert me.unreflected == 150 - 3 * len(remembered)


def test_idle_objects_are_rated_without_a_call() -> None:
    me, model = resident(), Rater()
    fresh = asyncio.run(perceive(me, Observation(0, *me.bed), model))  # type: ignore[arg-type]
    assert len(fresh) == 3
    assert all(event.object == IDLE for event in fresh)
    assert not model.functions
    assert me.unreflected == 147


def test_residents_know_home_workplace_and_named_places_at_first() -> None:
    profile = replace(town_profiles()[1], places=("Mill Green", "Alder College: library: sofa"))
    known = first_known(profile, ATLAS)
    assert list(known) == ["Willow Lodge", "Heron Inn", "Mill Green", "Alder College"]
    assert known["Alder College"] == {"library": ["sofa"]}
    rooms = {room for room in known["Willow Lodge"] if room.startswith("room")}
    assert rooms == {profile.room}
    assert set(known["Mill Green"]["park"]) == set(ATLAS.places["Mill Green"]["park"])
    with pytest.raises(MetropolisError, match="Mill Lane"):
        first_known(replace(profile, places=("Mill Lane",)), ATLAS)


def test_residents_learn_what_lies_within_their_square() -> None:
    scenario = make_scenario("smallville", agents=3)
    assert isinstance(scenario.world, SmallVille)
    result = Simulation(scenario.world, scenario.agents, Client(Scripted(scenario.author))).run(720)
    grid = alderbrook().map
    for number, agent in enumerate(scenario.agents):
        assert isinstance(agent, Resident)
        expected = set()
        for arena, rooms in first_known(agent.profile, ATLAS).items():
            expected |= {f"{arena}: {room}: {thing}" for room in rooms for thing in rooms[room]}
        before = len(expected)
        for x, y in {tuple(at) for at in result.trace.positions[:-1, number].astype(int).tolist()}:
            for ty in range(max(0, y - 4), min(grid.height, y + 5)):
                for tx in range(max(0, x - 4), min(grid.width, x + 5)):
                    if thing := ATLAS.thing((tx, ty)):
                        expected.add(thing)
        assert before < len(expected)
        assert expected == {
            f"{sector}: {arena}: {thing}"
            for sector, arenas in agent.known.items()
            for arena, things in arenas.items()
            for thing in things
        }


class Watcher(Agent):
    """Stands still; keeps the names of those in sight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: set[str] = set()

    def proceed(self, observation: Observation, llm: Any) -> None:
        self.seen |= {other.name for other in observation.nearby}


def test_one_resident_may_see_further_than_another() -> None:
    green = sorted(tile for tiles in ATLAS.places["Mill Green"]["park"].values() for tile in tiles)
    here, there = next(
        (a, b) for a in green for b in green if 4 < max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= 8
    )
    far, near = (
        replace(profile, at=at, settings=Settings(vision_tiles=tiles))
        for profile, at, tiles in zip(town_profiles(), (here, there), (8, 4), strict=False)
    )
    world = SmallVille(alderbrook().map, [far, near])
    assert world.perception_radius == 8
    watchers = [Watcher(far.name), Watcher(near.name)]
    Simulation(world, watchers).run(2)
    assert [watcher.seen for watcher in watchers] == [{near.name}, set()]
