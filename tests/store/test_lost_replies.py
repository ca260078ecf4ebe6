"""Lost replies do no harm: a repeated command gets the same answer as the first time."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostError

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store import redis, scripts
from metropolis.store.base import FencedOutError, StoreUnavailableError
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.pipelined_connection import PipelinedConnection
from tests.store.lines import LEASE_S, begin, claimed, commit, dispatch, execution_of


@pytest.fixture
def every_reply_is_lost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*call: Any) -> Any:
        scripts.call(*call)
        return scripts.call(*call)

    monkeypatch.setattr(redis, "call", twice)


@pytest.mark.usefixtures("every_reply_is_lost_once")
def test_lost_replies(shared: EmbeddedServer) -> None:
    run = uuid.uuid4().hex
    store = shared.store(run)
    fence = begin(store, 3)
    for step in range(5):
        for agent in range(3):
            dispatch(store, fence, step, agent)
        for _ in range(3):
            claim = claimed(store)
            key = Key(claim.agents[0], step, "plan", "digest", 0)
            store.keep_answer(key, Completion("yes", 1, 1, "stop"))
            assert store.extend(claim, LEASE_S)
            assert commit(store, claim)
        assert store.claim("test", LEASE_S) is None
        assert store.keep_minds(fence, step + 2)
        store.collect(fence, step)
    about = store.inspect()
    assert about.steps == [5, 5, 5]
    assert (about.counts["claims"], about.counts["commits"], about.acknowledgements) == (15, 15, 3)
    assert store.bought() == [Purchases("", "plan", 15, 15, 15)]
    dispatch(store, fence, 5, 0)
    store.give_back(claimed(store))
    assert [queued.agents for queued in store.inspect().ready] == [(0,)]
    store.release_lease(fence)
    with pytest.raises(FencedOutError):
        store.renew_lease(fence, 1)
    shared.remove(run)


@pytest.mark.usefixtures("every_reply_is_lost_once")
def test_several_claims_whose_reply_is_lost(shared: EmbeddedServer) -> None:
    """Clusters claimed together are returned together again, except those that others now hold."""
    run = uuid.uuid4().hex
    store = shared.store(run)
    fence = begin(store, 5)
    for agent in range(5):
        dispatch(store, fence, 0, agent)
    claims = store.claims("test", LEASE_S, most=3)
    assert [claim.agents for claim in claims] == [(0,), (1,), (2,)]
    assert len(store.claims("other", LEASE_S, most=5)) == 2
    assert all(commit(store, claim) for claim in claims)
    assert store.inspect().counts["claims"] == 5
    shared.remove(run)


@pytest.mark.parametrize("lost", ["EVALSHA", "BLMPOP"])
def test_a_claim_whose_reply_is_lost_with_its_connection(
    shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The worker's next call gets the cluster at once, whose claim lasts for a lease."""
    run = uuid.uuid4().hex
    store = shared.store(run)
    fence = begin(store, 1)
    dispatch(store, fence, 0, 0)
    ask, left = PipelinedConnection.ask, [lost]

    async def ask_once(connection: PipelinedConnection, *command: Any) -> Any:
        if command[0] == lost == "BLMPOP" and left:
            dispatch(store, fence, 1, 0)  # into the inbox of the waiting call
        reply = await ask(connection, *command)
        if command[0] in left:
            left.clear()
            raise LostError("the connection was reset")
        return reply

    async def claim_twice() -> None:
        async_store = store.async_store()
        asked = {"most": 1, "own": False}
        if lost == "BLMPOP":
            (claim,) = await async_store.claims("test", LEASE_S, 0.0, **asked)
            assert await async_store.commit(claim, execution_of(claim))
        monkeypatch.setattr(PipelinedConnection, "ask", ask_once)
        with pytest.raises(StoreUnavailableError):
            await async_store.claims("test", LEASE_S, 5.0, **asked)
        (again,) = await async_store.claims("test", LEASE_S, 0.0, **asked)
        assert await async_store.commit(again, execution_of(again))
        await async_store.close()

    asyncio.run(claim_twice())
    assert store.inspect().counts["claims"] == (1 if lost == "EVALSHA" else 2)
    shared.remove(run)
