"""A snapshot shows a cluster's members exactly what the whole world's state would show them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.rules.metrics import Hops
from metropolis.store.base import RunInfo, Server
from metropolis.store.cells import reach_of
from metropolis.store.claim import Claim, StateSnapshot
from metropolis.store.execution import Execution
from metropolis.types import Dispatch, Position
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.state import State
from metropolis.world.view import Reach, View
from tests.world.geometries import METRIC_NAMES, random_metric

NAMES = ["ann", "bob", "cem", "dee", "eve"]


class Walk:
    """Agents that walk, write and sing in random order, both in a store and in a State."""

    def __init__(self, random: Random, server: Server, metric_name: str) -> None:
        self.random = random
        self.metric, self.places = random_metric(random, metric_name)
        radius = random.choice([0, 1, 2.5, 4, inf])
        velocity = random.choice([1, 1, 3])
        self.reach = Reach(self.metric, radius, velocity, radius)
        entities = [Entity(name, random.choice(self.places), AGENT) for name in NAMES]
        entities += [Entity(f"stone{i}", random.choice(self.places)) for i in range(5)]
        self.known = [entity.name for entity in entities]
        events = [Event(6, "ann", random.choice(self.places), "sang", {"verse": i}) for i in (0, 1)]
        self.state = State(self.metric, radius, entities, 7)
        self.state.restore_events(events)
        self.run = uuid.uuid4().hex
        self.server = server
        self.store = server.store(self.run)
        graph = self.metric.neighbours if isinstance(self.metric, Hops) else None
        reached = reach_of(radius, velocity)
        info = RunInfo("walk", 1, tuple(NAMES), 7, 99, self.metric.name, reached, graph)
        self.store.begin(info, entities, dict.fromkeys(range(len(NAMES))), events)
        self.fence = self.store.take_lease("walk", 60)

    def step(self) -> None:
        """Run one cluster of agents at the same step, not too far ahead of the others."""
        steps = self.store.nodes().steps
        at = self.random.choice([step for step in set(steps) if step < min(steps) + 4])
        standing = [agent for agent in range(len(NAMES)) if steps[agent] == at]
        cluster = sorted(self.random.sample(standing, self.random.randint(1, len(standing))))
        self.store.dispatch(self.fence, [Dispatch(at, tuple(cluster))], {}, min(steps))
        claim = self.store.claim("walk", 60)
        assert claim is not None
        self.compare(claim.snapshot, [NAMES[agent] for agent in cluster])
        self.commit(claim)
        if self.random.random() < 0.3:
            floor = min(self.store.nodes().steps)
            self.store.collect(self.fence, floor)
            self.state.collect(floor)

    def commit(self, claim: Claim) -> None:
        writes: dict[str, Entity | None] = {}
        events = []
        for agent in claim.agents:
            name, step = NAMES[agent], claim.step
            body = self.state.entity(name, step)
            assert body is not None
            near = [p for p in self.places if self.metric.within(body.position, p, 0, 1)]
            writes[name] = Entity(name, self.random.choice(near), AGENT, {"at": step + 1})
            letter = f"{name}'s letter"
            if self.random.random() < 0.7:
                gone = self.random.random() < 0.3
                writes[letter] = (
                    None if gone else Entity(letter, self.random.choice(near), state={"n": step})
                )
            events += [
                Event(step, name, self.random.choice(near), "sang", {"verse": verse})
                for verse in range(self.random.randint(0, 3))
            ]
        minds = {agent: {} for agent in claim.agents}
        execution = Execution(claim.step, claim.agents, {}, writes, events, {}, minds)
        self.state.commit(claim.step, writes, events)
        self.known = sorted({*self.known, *writes})
        assert self.store.commit(claim, execution)

    def compare(self, piece: StateSnapshot, members: list[str]) -> None:
        cut = piece.state(self.metric, self.reach.perception_radius)
        for name in members:
            whole_view, cut_view = (
                View(state, self.reach, 1, piece.step, name) for state in (self.state, cut)
            )
            assert cut_view.me == whole_view.me
            assert cut_view.agents() == whole_view.agents()
            assert cut_view.things() == whole_view.things()
            assert cut_view.events() == whole_view.events()
            assert cut_view.reads == whole_view.reads
            self.compare_names(cut, cut_view.position, piece.step)

    def compare_names(self, cut: State, position: Position, step: int) -> None:
        """Check lookups by name within reading and writing distance."""
        for name in self.known:
            version = self.state.version(name, step)
            entity = version and version[1]
            if entity is None:
                assert cut.entity(name, step) is None
            elif self.metric.perceives(
                position, entity.position, self.reach.perception_radius
            ) or self.metric.within(position, entity.position, 0, self.reach.max_velocity):
                assert cut.version(name, step) == version

    def compare_worlds(self) -> None:
        floor = min(self.store.nodes().steps)
        assert self.store.world(floor) == self.state.at(floor)


@pytest.mark.parametrize("kind", ["memory", "valkey"])
@pytest.mark.parametrize("metric", METRIC_NAMES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_slices_are_the_world_that_the_members_see(
    server_of: Callable[[str], Server], metric: str, kind: str, seed: int
) -> None:
    walk = Walk(Random(seed), server_of(kind), metric)
    for _ in range(25):
        walk.step()
    walk.compare_worlds()
    walk.store.release_lease(walk.fence)
    walk.server.remove(walk.run)


def test_a_slice_is_no_more_than_the_surroundings(server: Server) -> None:
    run = uuid.uuid4().hex
    store = server.store(run)
    info = RunInfo("grid", 1, ("ann",), 0, 9, "chebyshev", 2.0)
    far: list[Position] = [(x, y) for x in range(100) for y in range(100)]
    stones = [Entity(f"{x} {y}", (x, y)) for x, y in far]
    store.begin(info, [Entity("ann", (50, 50), AGENT), *stones], {0: None})
    store.dispatch(store.take_lease("me", 0), [Dispatch(0, (0,))], {}, 0)
    claim = store.claim("me", 60)
    assert claim is not None
    assert 26 <= len(claim.snapshot.versions) <= 1 + 12 * 12
    server.remove(run)
