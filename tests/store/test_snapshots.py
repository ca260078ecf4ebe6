"""A server that is restarted during a run, with or without its newest commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metropolis.store import commands
from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.claim import Claim, Lookahead
from metropolis.store.commands import claim_token
from metropolis.store.redis import RedisStore
from metropolis.types import Dispatch
from metropolis.world.parts import from_parts
from tests.store.lines import LEASE_S, begin, claimed, commit, dispatch, execution_of
from tests.store.snapshot_server import SnapshotServer


@pytest.fixture
def server() -> Iterator[SnapshotServer]:
    with SnapshotServer() as server:
        yield server


def read_a_commit(store: Store, fence: int) -> None:
    assert commit(store, claimed(store))
    assert len(store.acknowledgements("0", 0)) == 1


def dispatch_more(store: Store, fence: int) -> None:
    dispatch(store, fence, 0, 1)


def take_the_lease(store: Store, fence: int) -> None:
    assert store.take_lease("test", 0) == fence + 1


def keep_minds(store: Store, fence: int) -> None:
    assert store.keep_minds(fence, 5)


@pytest.mark.parametrize("change", [read_a_commit, dispatch_more, take_the_lease, keep_minds])
@pytest.mark.parametrize(
    "call",
    [
        lambda store, fence: store.acknowledgements("0-1", 0),
        lambda store, fence: dispatch(store, fence, 0, 1),
        lambda store, fence: store.renew_lease(fence, 1),
        lambda store, fence: store.keep_minds(fence, 7),
        lambda store, fence: store.kept_minds(),
        lambda store, fence: store.collect(fence, 0),
        lambda store, fence: store.claim("test", LEASE_S),
    ],
)
def test_a_controller_notices_what_is_lost(
    server: SnapshotServer,
    change: Callable[[Store, int], None],
    call: Callable[[Store, int], Any],
) -> None:
    store = server.store("run")
    fence = begin(store, 2)
    dispatch(store, fence, 0, 0)
    server.save()
    change(store, fence)
    server.restart()
    fence += change is take_the_lease
    for _ in range(2):
        with pytest.raises(StoreError, match="has lost its newest commits"):
            call(store, fence)
    assert list(store.nodes().steps) == [0, 0]  # readers go on
    assert store.world(0)[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_controller_accepts_a_server_that_has_lost_nothing(
    server: SnapshotServer, asynchronous: bool
) -> None:
    store = server.store("run")
    fence = begin(store, 2)
    dispatch(store, fence, 0, 0)
    read_a_commit(store, fence)
    server.save()
    server.restart()
    worker = server.store("run")
    with pytest.raises(StoreUnavailableError, match="has not confirmed yet"):
        worker.claim("test", LEASE_S)
    if asynchronous:

        async def dispatch_again() -> None:
            other = store.async_store()
            await other.dispatch(fence, [Dispatch(1, (0,))], {}, 0)
            await other.close()

        asyncio.run(dispatch_again())
    else:
        dispatch(store, fence, 1, 0)
    assert commit(worker, claimed(worker))
    assert list(store.nodes().steps) == [2, 0]


def test_commits_that_only_a_worker_knows_are_repeated(server: SnapshotServer) -> None:
    """The worker's copy of the mind is ahead, so its claim contains the mind."""
    store, worker = server.store("run"), server.store("run")
    fence = begin(store, 1)
    dispatch(store, fence, 0, 0)
    assert commit(worker, claimed(worker))
    store.dispatch(fence, [Dispatch(1, (0,))], {}, 0, {0: Lookahead(9, (0, 0), 1.0)})
    server.save()
    held = claimed(worker)
    assert not held.minds
    ahead = worker.commit(held, execution_of(held), lease_s=LEASE_S)
    assert ahead
    server.restart()
    with pytest.raises(StoreUnavailableError, match="has not confirmed yet"):
        worker.commit(held, execution_of(held))
    assert store.acknowledgements("0", 0)
    assert store.acknowledgements(store.nodes().last_id, 0) == []  # the controller accepts
    assert not worker.commit(held, execution_of(held))
    again = claimed(worker)
    assert from_parts(again.minds[0])["step"] == 1
    assert commit(worker, again)


def test_a_cluster_that_came_back_in_the_inbox(server: SnapshotServer) -> None:
    """The snapshot contains the reply to an earlier call, which the worker has used."""
    store = server.store("run")
    assert isinstance(store, RedisStore)
    fence = begin(store, 1)
    dispatch(store, fence, 0, 0)
    assert commit(store, claimed(store))

    def waits() -> tuple[commands.Call[list[Claim]], commands.BlockingCommand]:
        calls = commands.claims(store.prefix, "test", LEASE_S, 5.0, 0, 1, own=True)
        asked = next(calls)
        assert isinstance(asked, commands.Script)
        waiting = calls.send(store._call(asked.name, *asked.arguments))
        assert isinstance(waiting, commands.BlockingCommand)
        return calls, waiting

    calls, waiting = waits()
    dispatch(store, fence, 1, 0)
    server.save()
    with pytest.raises(StopIteration) as returned:
        calls.send(server.client.execute_command(*waiting.arguments))
    (claim,) = returned.value.value
    assert commit(store, claim)
    calls, waiting = waits()
    server.restart()
    popped = server.client.execute_command(*waiting.arguments)
    assert popped is not None
    again = calls.send(popped)
    assert isinstance(again, commands.Script)
    store._call("hold", claim.id, claim_token(claim), -1)
    repeated = claimed(store)
    assert repeated.step == 1
    assert from_parts(repeated.minds[0])["step"] == 1
