"""What a cluster may write, and the sentences that refuse the rest."""

import asyncio
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV, GenAgent, Geodesic
from metropolis.types import CausalityError, MetropolisError
from metropolis.world.clusters import clusters
from metropolis.world.entities import Entity
from metropolis.world.state import State
from metropolis.world.transaction import Member, Transaction, split_into_clusters
from metropolis.world.view import Reach
from tests.world.geometries import METRIC_NAMES, random_metric

REACH = Reach(CHEBYSHEV, perception_radius=4, max_velocity=1, joint_radius=3)
BEGUN = [
    Entity("ann", (0, 0), "agent", {"mood": "calm"}),
    Entity("bob", (2, 0), "agent"),
    Entity("cleo", (9, 0), "agent"),
    Entity("door", (1, 0), "door", {"open": False, "colour": "red"}),
    Entity("well", (3, 3), "well"),
]


async def ask(name: str, question: Any) -> Any:
    return f"{name} answers {question}"


@pytest.fixture
def state() -> State:
    return State(CHEBYSHEV, 4, BEGUN)


def cluster(state: State, *names: str, reach: Reach = REACH) -> Transaction:
    return Transaction(state, reach, 7, 5, {name: f"{name}'s" for name in names}, ask)


def refused(expected: str, kind: type[Exception], act: Any, *given: Any, **more: Any) -> None:
    with pytest.raises(kind) as refusal:
        act(*given, **more)
    assert str(refusal.value) == f"step 5, agent 'ann': {expected}"


def test_it_holds_the_members_with_their_actions(state: State) -> None:
    both = cluster(state, "ann", "bob")
    assert [(member.name, member.action) for member in both] == [("ann", "ann's"), ("bob", "bob's")]
    assert both.members == list(both)
    assert both["bob"].position == (2, 0)
    assert ("bob" in both, "cleo" in both) == (True, False)
    with pytest.raises(CausalityError) as refusal:
        both["cleo"]
    assert str(refusal.value) == (
        "step 5: the agent 'cleo' is not in the cluster 'ann', 'bob'; only members of a cluster "
        "act together"
    )


def test_members_read_what_the_cluster_has_written(state: State) -> None:
    both = cluster(state, "ann", "bob")
    ann, bob = both
    ann.move((1, 1))
    ann.write(mood="gay")
    ann.write("door", open=True)
    letter = bob.add("letter", (3, 0), words="dear Ann")
    assert bob.entity("ann").position == (1, 1)
    assert bob.entity("ann")["mood"] == "gay"
    assert dict(bob.entity("door").state) == {"open": True, "colour": "red"}
    assert ann.things("letter") == [letter]
    assert [body.name for body in ann.agents()] == ["bob"]
    bob.remove(letter.name)
    assert ann.things("letter") == []
    assert ann.position == (0, 0), "where its step began"
    assert both.writes == {
        "ann": Entity("ann", (1, 1), "agent", {"mood": "gay"}),
        "door": Entity("door", (1, 0), "door", {"open": True, "colour": "red"}),
        letter.name: None,
    }
    assert state.at(6)[0] == sorted(BEGUN, key=lambda entity: entity.name), "nothing before commit"


def test_reads_are_recorded_but_not_those_of_its_own_writes(state: State) -> None:
    (ann,) = cluster(state, "ann")
    ann.write("door", open=True)
    named = {name: state.version(name, 5) for name in ("ann", "door")}
    assert ann.reads.entities == named
    ann.move((1, 1))
    ann.write("door", open=False)
    assert "door" in [entity.name for entity in ann.things()]
    assert ann.reads.entities == named
    (seen,) = ann.reads.areas.values()
    assert [since for since, _ in seen] == [0] * len(seen)


def test_new_things_have_names_of_their_own(state: State) -> None:
    ann, bob = cluster(state, "ann", "bob")
    new = [ann.add("coin"), bob.add("coin"), ann.add("coin", (1, 1), worth=2)]
    assert [(e.name, e.position) for e in new] == [
        ("coin/ann/5/0", (0, 0)),
        ("coin/bob/5/0", (2, 0)),
        ("coin/ann/5/1", (1, 1)),
    ]


def test_events_come_from_who_emits_them(state: State) -> None:
    both = cluster(state, "ann", "bob")
    both["bob"].emit("said", words="hello")
    both["ann"].emit("fell", (1, 1))
    told = [(e.step, e.source, e.position, e.kind, dict(e.data)) for e in both.events]
    assert told == [(5, "bob", (2, 0), "said", {"words": "hello"}), (5, "ann", (1, 1), "fell", {})]


def test_asking(state: State) -> None:
    both = cluster(state, "ann", "bob")
    assert asyncio.run(both["ann"].ask("bob", "why")) == "bob answers why"
    far = Transaction(state, REACH, 7, 5, {"ann": None, "cleo": None}, ask)
    with pytest.raises(CausalityError) as refusal:
        asyncio.run(far["ann"].ask("cleo", "why"))
    assert str(refusal.value) == (
        "step 5, agent 'ann': asks 'cleo', 9 away when the step begins: 6 beyond the joint radius 3"
    )


def test_refusals(state: State) -> None:
    both = cluster(state, "ann", "bob")
    ann = both["ann"]
    too_far = "2 away: 1 further than the velocity 1"
    refused(f"moves from (0, 0) to (2, 0), {too_far}", CausalityError, ann.move, (2, 0))
    refused(
        f"writes the entity 'bob' at (2, 0), {too_far}", CausalityError, ann.write, "bob", mood=""
    )
    refused(
        "writes the entity 'well' at (3, 3), 3 away: 2 further than the velocity 1",
        CausalityError,
        ann.remove,
        "well",
    )
    refused(f"writes a new coin at (0, 2), {too_far}", CausalityError, ann.add, "coin", (0, 2))
    refused(
        f"writes the event 'shout' at (2, 2), {too_far}", CausalityError, ann.emit, "shout", (2, 2)
    )
    refused(
        "adds an agent; all agents exist from step 0", MetropolisError, ann.add, "agent", (0, 0)
    )
    refused(
        "reads the entity 'ghost', and no entity of that name is within the perception radius 4",
        CausalityError,
        ann.write,
        "ghost",
        mood="pale",
    )
    refused(
        "removes 'ann', an agent's body; only things can be removed",
        MetropolisError,
        ann.remove,
        "ann",
    )
    refused(
        "cannot put anything at (nan, 0): its coordinates must lie within ±1e+09",
        MetropolisError,
        ann.move,
        (float("nan"), 0),
    )
    with pytest.raises(MetropolisError, match="has the type set; a world's values are texts"):
        ann.write(friends={"bob"})
    assert (both.writes, both.events) == ({}, []), "what was refused leaves nothing"


def test_walls(state: State) -> None:
    walls = np.zeros((5, 5), bool)
    walls[0, 1] = True
    begun = [Entity("ann", (0, 0), "agent"), Entity("key", (2, 0))]
    reach = Reach(Geodesic(walls), 6, 3, 3)
    (ann,) = cluster(State(reach.metric, 6, begun), "ann", reach=reach)
    refused("cannot put anything at (1, 0): it is a wall", MetropolisError, ann.move, (1, 0))
    refused(
        "moves from (0, 0) to (2, 0), 4 away: 1 further than the velocity 3",
        CausalityError,
        ann.move,
        (2, 0),
    )
    ann.move((1, 1))


@pytest.mark.parametrize("name", METRIC_NAMES)
@given(seed=st.integers(0, 2**32))
def test_nothing_is_written_beyond_the_velocity_nor_read_beyond_the_radius(
    name: str, seed: int
) -> None:
    """Whatever a world tries: what it gets and what is kept lies within its reach."""
    random = Random(seed)
    velocity = random.choice([0, 1, 2])
    metric, places = random_metric(random, name, velocity)
    radius = random.choice([1, 3])
    reach = Reach(metric, radius, velocity, 1)
    begun = [Entity(n, random.choice(places), "agent") for n in "abcd"]
    begun += [Entity(n, random.choice(places)) for n in "xyz"]
    state, position = State(metric, radius, begun), {e.name: e.position for e in begun}
    parts = [
        Transaction(state, reach, 0, 0, dict.fromkeys("abcd"[i] for i in group), ask)
        for group in split_into_clusters(reach, [position[name] for name in "abcd"])
    ]
    for member in [member for part in parts for member in part]:
        for _ in range(4):
            for read in try_something(random, member, places):
                assert metric.perceives(member.position, read.position, radius)
    written = [entity for part in parts for entity in part.writes.values() if entity]
    for entity in written:
        sources = [position[entity.name]] if entity.name in position else list(position.values())
        assert any(metric.within(p, entity.position, 0, velocity) for p in sources)
    names = [n for part in parts for n in part.writes]
    assert len(names) == len(set(names)), "two clusters never write the same thing"


def try_something(random: Random, member: Member, places: list) -> list[Entity]:
    """What was read in a random attempt to read or write something somewhere."""
    place, name = random.choice(places), random.choice("abcdxyz")
    attempts = [
        lambda: member.move(place),
        lambda: member.write(name, touched=True),
        lambda: member.remove(name),
        lambda: member.emit("fell", place),
        lambda: (member.add("coin", place), [])[1],
        lambda: [member.entity(name)],
        lambda: member.agents(random.choice([1, 3])),
    ]
    try:
        return random.choice(attempts)() or []
    except MetropolisError:
        return []


def test_agents_far_apart_are_not_in_one_cluster() -> None:
    assert split_into_clusters(REACH, [(9, 0), (2, 0), (0, 0)]) == [(0,), (1, 2)]
    assert split_into_clusters(REACH, [(9, 0)]) == [(0,)]
    assert clusters(CHEBYSHEV, REACH.cluster_radius, [(9, 0), (2, 0), (0, 0)]) == [(0,), (1, 2)]


def test_distances_of_writes_are_those_of_walks() -> None:
    """Perception in `GenAgent` is a square: a diagonal tile is 1 away for it, and 2 for a walk."""
    walls = np.zeros((4, 4), np.bool_)
    metric = GenAgent(walls, np.zeros((4, 4), np.int32), 1)
    begun = State(metric, 4, [Entity("ann", (0, 0), "agent"), Entity("cup", (1, 1), "cup")])
    ann = cluster(begun, "ann", reach=Reach(metric, 4, 1, 3))["ann"]
    far = "2 away: 1 further than the velocity 1"
    refused(f"writes the entity 'cup' at (1, 1), {far}", CausalityError, ann.write, "cup", full=1)
    refused(f"moves from (0, 0) to (1, 1), {far}", CausalityError, ann.move, (1, 1))
