"""What an agent may know, and the sentences that refuse the rest."""

from math import inf, nan
from typing import Any

import pytest

from metropolis.rules.metrics import CHEBYSHEV, EUCLIDEAN, Hops, Metric
from metropolis.types import CausalityError, MetropolisError
from metropolis.world.entities import Entity, Event
from metropolis.world.state import State
from metropolis.world.transaction import Transaction
from metropolis.world.view import Reach, Reads, View

REACH = Reach(CHEBYSHEV, perception_radius=4, max_velocity=1, joint_radius=2)
BEGUN = [
    Entity("ann", (0, 0), "agent", {"mood": "calm"}),
    Entity("bob", (3, 0), "agent"),
    Entity("cleo", (9, 0), "agent"),
    Entity("stone", (4, 4), "thing", {"weight": 2}),
    Entity("bench", (1, 0), "seat"),
    Entity("lake", (30, 0), "water"),
]


def view_of(state: State, name: str = "ann", step: int = 0, reach: Reach = REACH) -> View:
    return View(state, reach, 7, step, name)


@pytest.fixture
def state() -> State:
    return State(CHEBYSHEV, 4, BEGUN)


def names(entities: list[Entity]) -> list[str]:
    return [entity.name for entity in entities]


def test_it_shows_what_is_near(state: State) -> None:
    view = view_of(state)
    assert (view.name, view.step, view.position, view.me["mood"]) == ("ann", 0, (0, 0), "calm")
    assert names(view.agents()) == ["bob"]
    assert names(view.agents(2)) == []
    assert names(view.things()) == ["bench", "stone"]
    assert names(view.things("seat")) == ["bench"]
    assert names(view.things(radius=3)) == ["bench"]
    assert view.entity("stone")["weight"] == 2
    assert view.entity("stone").get("colour", "grey") == "grey"


def test_its_position_is_read_only(state: State) -> None:
    """Only `Member.move`, which checks the velocity, moves an agent."""
    with pytest.raises(AttributeError):
        view_of(state).position = (9, 9)  # type: ignore[misc]


def test_it_stands_still_while_others_go_on(state: State) -> None:
    state.commit(0, {"bob": Entity("bob", (2, 0), "agent")}, [Event(0, "bob", (2, 0), "wave")])
    before, after = view_of(state), view_of(state, step=1)
    assert before.entity("bob").position == (3, 0)
    assert before.events() == []
    assert after.entity("bob").position == (2, 0)
    assert [event.kind for event in after.events()] == ["wave"]
    assert after.events("shout") == []
    assert view_of(state, step=2).events() == []


def test_it_records_what_was_read(state: State) -> None:
    bob, wave = Entity("bob", (3, 1), "agent"), Event(0, "bob", (3, 1), "wave")
    state.commit(0, {"bob": bob}, [wave])
    view = view_of(state, step=1)
    known = {name: state.version(name, 1) for name in ("ann", "bob", "bench", "stone", "lake")}
    assert view.reads == Reads({"ann": known["ann"]}, {}, {})
    view.agents(3)
    assert view.reads.areas == {((0, 0), 3): [known["ann"], known["bench"], (1, bob)]}
    view.entity("stone")
    view.events("shout")
    for absent in ("unicorn", "lake"):
        with pytest.raises(CausalityError):
            view.entity(absent)
    assert view.reads.events == {((0, 0), 4): [wave]}
    named = {name: known[name] for name in ("ann", "stone", "lake")}
    assert view.reads.entities == {**named, "unicorn": None}
    assert view.refused == {"unicorn", "lake"}


def test_draws_depend_on_seed_agent_and_step_only(state: State) -> None:
    def draw(name: str, step: int, seed: int = 7) -> float:
        return View(state, REACH, seed, step, name).random.random()

    view = view_of(state)
    assert [view.random.random(), view.random.random()] != [draw("ann", 0)] * 2
    renamed = type("Renamed", (View,), {})(state, REACH, 7, 0, "ann")
    assert renamed.random.random() == draw("ann", 0, 7)
    assert draw("ann", 0) == draw("ann", 0)
    assert len({draw("ann", 0), draw("ann", 1), draw("bob", 0), draw("ann", 0, seed=8)}) == 4


def test_reading_an_entity_far_away(state: State) -> None:
    with pytest.raises(CausalityError) as refusal:
        view_of(state).entity("cleo")
    assert str(refusal.value) == (
        "step 0, agent 'ann': reads the entity 'cleo', and no entity of that name is within the "
        "perception radius 4"
    )


def test_looking_too_far(state: State) -> None:
    for look in (View.agents, View.things):
        with pytest.raises(CausalityError) as refusal:
            look(view_of(state), radius=6.5)
        assert str(refusal.value) == (
            "step 0, agent 'ann': looks 6.5 far, 2.5 beyond the perception radius 4"
        )
        with pytest.raises(CausalityError, match="looks nan far"):
            look(view_of(state), radius=nan)


def test_reaching_for_what_is_not_there(state: State) -> None:
    with pytest.raises(CausalityError) as refusal:
        view_of(state, step=3).entity("ghost")
    assert str(refusal.value) == (
        "step 3, agent 'ann': reads the entity 'ghost', and no entity of that name is within "
        "the perception radius 4"
    )


def test_an_agent_without_a_body(state: State) -> None:
    with pytest.raises(MetropolisError, match="there is no body for the agent 'dora' at step 0"):
        view_of(state, "dora")


def test_distances_are_told_in_the_metric() -> None:
    graph = Hops([[1], [0, 2], [1], []])
    cases: list[tuple[Metric, tuple[float, float], str]] = [
        (EUCLIDEAN, (3, 4.5), "5.40833 away: 4.40833 further than the velocity 1"),
        (graph, (2, 0), "2 away: 1 further than the velocity 1"),
        (graph, (3, 0), "inf away: inf further than the velocity 1"),
    ]

    async def ask(_name: str, _question: Any) -> None:
        """Members ask no question here."""

    for metric, place, told in cases:
        state = State(metric, 1, [Entity("ann", (0, 0), "agent")])
        cluster = Transaction(state, Reach(metric, 1, 1, 0), 0, 0, {"ann": None}, ask)
        with pytest.raises(CausalityError) as refusal:
            cluster["ann"].emit("call", place)
        assert str(refusal.value).endswith(told)


def test_a_world_without_distance_shows_everything(state: State) -> None:
    view = view_of(state, reach=Reach(CHEBYSHEV, inf, inf, inf))
    assert names(view.agents()) == ["bob", "cleo"]
    assert names(view.things()) == ["bench", "lake", "stone"]
