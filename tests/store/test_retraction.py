"""Retraction against runs in which the retracted steps have never been; execution records."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV
from metropolis.store.base import RunInfo, Server, Store
from metropolis.store.execution import Execution, execution_from_json, execution_to_json
from metropolis.types import CausalityError, Dispatch
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.parts import to_parts
from metropolis.world.state import State
from metropolis.world.view import Reach, View

NAMES = ("ann", "bob", "cem", "dee")
INFO = RunInfo("random", 1, NAMES, 0, 99, "chebyshev", 3.0, retractable=True)
BEGUN = [Entity(name, (2 * i, 0), AGENT) for i, name in enumerate(NAMES)]
HOUR_S = 3600.0


def begun(server: Server, name: str) -> tuple[Store, int]:
    store = server.store(name)
    store.begin(INFO, BEGUN, {agent: {"walked": 0} for agent in range(len(NAMES))})
    return store, store.take_lease("test", HOUR_S)


def execution_of(step: int, agents: tuple[int, ...], drawn: int) -> Execution:
    """What the members do, which depends on `drawn`: moves, things that come and go, events."""
    random = Random(f"{step} {agents} {drawn}")
    writes: dict[str, Entity | None] = {}
    for agent in agents:
        name = NAMES[agent]
        if random.random() < 0.7:
            writes[name] = Entity(name, (2 * agent + random.randint(0, 9), 0), AGENT, {"n": drawn})
        kite = f"{name}'s kite"
        writes[kite] = None if random.random() < 0.4 else Entity(kite, (random.randint(0, 9), 1))
    events = [
        Event(step, NAMES[agent], (random.randint(0, 9), 0), "sang", {"verse": verse})
        for agent in agents
        for verse in range(random.randint(0, 2))
    ]
    minds = {agent: to_parts({"walked": step + 1, f"thought {drawn}": drawn}) for agent in agents}
    return Execution(
        step, agents, {NAMES[agent]: drawn for agent in agents}, writes, events, {}, minds
    )


def commit(store: Store, fence: int, execution: Execution) -> None:
    store.dispatch(fence, [Dispatch(execution.step, execution.agents)], {}, 0)
    claim = store.claim("test", HOUR_S)
    assert claim is not None
    assert (claim.step, claim.agents) == (execution.step, execution.agents)
    assert store.commit(claim, execution)


def shown(store: Store) -> list[object]:
    """Everything but the ids of acknowledgements."""
    nodes = store.nodes()
    floor, newest = min(nodes.steps), max(nodes.steps)
    worlds = [store.world(step) for step in range(floor, newest + 2)]
    acknowledged = [one.execution for one in store.acknowledgements("0", 0)]
    return [list(nodes.steps), list(nodes.positions), store.minds(range(4)), worlds, acknowledged]


@pytest.mark.parametrize("kind", ["memory", "valkey"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_retracted_has_never_been(
    server_of: Callable[[str], Server], kind: str, seed: int
) -> None:
    random, server, run = Random(seed), server_of(kind), uuid.uuid4().hex
    store, fence = begun(server, run)
    done: list[Execution] = []
    steps, collected = [0] * len(NAMES), 0
    for drawn in range(25):
        what = random.random()
        if what < 0.2:
            agent = random.randrange(len(NAMES))
            falls = {agent: random.randint(collected, steps[agent])}
            for _ in done:  # as many rounds as there can be
                for one in done:
                    if any(one.step >= falls.get(member, 99) for member in one.agents):
                        for member in one.agents:
                            falls[member] = min(falls.get(member, 99), one.step)
            store.retract(fence, agent, falls[agent])
            done = [one for one in done if all(one.step < falls.get(a, 99) for a in one.agents)]
            steps = [min(step, falls.get(agent, 99)) for agent, step in enumerate(steps)]
        elif what < 0.3:
            collected = min(steps)
            store.collect(fence, collected)
        else:
            at = random.choice([step for step in set(steps) if step < min(steps) + 4])
            standing = [agent for agent, step in enumerate(steps) if step == at]
            agents = tuple(sorted(random.sample(standing, random.randint(1, len(standing)))))
            done.append(execution_of(at, agents, drawn))
            commit(store, fence, done[-1])
            for agent in agents:
                steps[agent] += 1
    other = uuid.uuid4().hex
    expected, its_fence = begun(server, other)
    for one in done:
        commit(expected, its_fence, one)
    expected.collect(its_fence, collected)
    assert shown(store) == shown(expected)
    for one, held in ((store, fence), (expected, its_fence)):
        one.release_lease(held)
    server.remove(run)
    server.remove(other)


def read(radius: float) -> Execution:
    """An execution that has read all kinds of things."""
    state = State(CHEBYSHEV, 3, BEGUN)
    bob, kite = replace(BEGUN[1], position=(3.0, 0.0)), Entity("kite", (1, 1))
    state.commit(0, {"bob": bob, "kite": kite}, [Event(0, "bob", (3, 0), "sang", {"verse": 1})])
    state.commit(1, {"kite": None}, [Event(1, "bob", (3, 0), "left")])
    view = View(state, Reach(CHEBYSHEV, radius, 1, 1), 7, 2, "ann")
    view.agents()
    view.events()
    for absent in ("kite", "unicorn"):
        with pytest.raises(CausalityError):
            view.entity(absent)
    minds = {0: to_parts({"walked": 3})}
    reads = {"ann": view.reads}
    return Execution(2, (0,), {"ann": 1}, {}, [], {}, minds, reads, reads, attempt=5)


@pytest.mark.parametrize("radius", [3.0, inf])
def test_a_record_has_what_was_read(radius: float) -> None:
    execution = read(radius)
    line = execution_to_json(execution, reads=True)
    assert execution_from_json(line) == msgspec.structs.replace(execution, minds={})
    assert execution_from_json(execution_to_json(execution)).observed == {}


def test_stores_of_retractable_runs_keep_what_was_read(server: Server) -> None:
    run = uuid.uuid4().hex
    store, fence = begun(server, run)
    for step in range(2):
        commit(store, fence, execution_of(step, (0,), 0))
    commit(store, fence, read(3.0))
    *_, last = store.acknowledgements("0", 0)
    assert (last.execution.observed, last.execution.attempt) == (read(3.0).observed, 5)
    store.release_lease(fence)
    server.remove(run)
