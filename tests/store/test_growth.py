"""A store's size grows with agents and with their distance in steps, not with steps."""

from __future__ import annotations

import uuid
from random import Random

from metropolis.store.base import Store
from metropolis.store.embedded import EmbeddedServer
from tests.store.lines import begin, claimed, commit, dispatch

LOAD = 300 * "x"


def walk(store: Store, fence: int, random: Random, agents: int, steps: int, lag: int) -> None:
    """Run until the floor has risen by `steps`; no agent is more than `lag` ahead of it."""
    at = list(store.nodes().steps)
    last = min(at) + steps
    while min(at) < last:
        agent = random.choice([i for i in range(agents) if at[i] < min(at) + 1 + lag])
        dispatch(store, fence, at[agent], agent)
        assert commit(store, claimed(store), LOAD)
        at[agent] += 1
        store.collect(fence, min(at))


def measured(server: EmbeddedServer, agents: int, lag: int, *, steps: int) -> list[tuple[int, int]]:
    """Return (bytes, keys) of the server, the maximum of each hundred steps."""
    run, random = uuid.uuid4().hex, Random(1)
    store = server.store(run)
    fence = begin(store, agents)
    measures = []
    for _ in range(steps // 100):
        sizes, keys = [], []
        for _ in range(20):
            walk(store, fence, random, agents, 5, lag)
            sizes.append(store.inspect().memory_bytes)
            keys.append(server.client.dbsize())
        measures.append((max(sizes), max(keys)))
    server.remove(run)
    return measures


def test_memory_does_not_grow_with_steps(shared: EmbeddedServer) -> None:
    measures = measured(shared, 8, 10, steps=600)
    sizes, keys = zip(*measures[1:], strict=True)
    assert max(sizes) < 1.25 * min(sizes), sizes
    assert max(keys) <= 1.25 * min(keys), keys


def test_memory_grows_with_agents_and_lag(shared: EmbeddedServer) -> None:
    """This shows that the measure above is sensitive."""
    (few, _), *_ = measured(shared, 4, 5, steps=100)
    (more_agents, _), *_ = measured(shared, 16, 5, steps=100)
    (more_lag, _), *_ = measured(shared, 4, 40, steps=100)
    assert more_agents > 2 * few
    assert more_lag > 1.5 * few
