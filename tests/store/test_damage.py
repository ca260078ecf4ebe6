"""Values in a server that another program has changed: one sentence says so."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.base import Store, StoreError
from metropolis.store.embedded import EmbeddedServer
from tests.store.lines import LEASE_S, begin, claimed, commit, dispatch

DAMAGED = r"the run '\w+' is damaged, or its keys .*; resume it with store memory, from its last"
ANSWER = Completion("yes", 1, 1, "stop")


async def claim_in_event_loop(store: Store) -> None:
    async_store = store.async_store()
    try:
        await async_store.claims("test", LEASE_S, 0.0, most=1, own=False)
    finally:
        await async_store.close()


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("nodes", lambda store: store.nodes()),
        ("bodies", lambda store: store.world(0)),
        ("bodies", lambda store: store.claim("test", LEASE_S)),
        ("mind:0", lambda store: store.claim("test", LEASE_S)),
        ("mind:0", lambda store: asyncio.run(claim_in_event_loop(store))),
        ("mind:0", lambda store: store.minds([0])),
        ("memo:1:0", lambda store: store.answers([1])),
        ("bought", lambda store: store.bought()),
        ("acks", lambda store: store.acknowledgements("0", 0)),
    ],
)
def test_a_changed_value(shared: EmbeddedServer, key: str, call: Callable[[Store], Any]) -> None:
    run = uuid.uuid4().hex
    store = shared.store(run)
    fence = begin(store, 1)
    dispatch(store, fence, 0, 0)
    assert commit(store, claimed(store, "other"))
    store.keep_answer(Key(0, 1, "plan", "digest", 0), ANSWER)
    dispatch(store, fence, 1, 0)
    name = f"metropolis:{{{run}}}:{key}"
    if key == "acks":
        shared.client.xadd(name, {"execution": "damage"})
    else:
        for field in shared.client.hkeys(name):
            shared.client.hset(name, field, "damage")
    with pytest.raises(StoreError, match=DAMAGED):
        call(store)
    shared.remove(run)


def test_a_lost_node(shared: EmbeddedServer) -> None:
    run = uuid.uuid4().hex
    store = shared.store(run)
    begin(store, 2)
    shared.client.hdel(f"metropolis:{{{run}}}:nodes", 0)
    with pytest.raises(StoreError, match=DAMAGED):
        store.nodes()
    shared.remove(run)
