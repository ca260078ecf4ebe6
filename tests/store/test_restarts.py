"""A server that is restarted during a run, with or without its newest commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metropolis.store import commands
from metropolis.store.base import FencedOutError, Store, StoreError, StoreUnavailableError
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


def accept(store: Store) -> None:
    """What a controller that waits for commits does."""
    assert store.acknowledgements(store.nodes().last_id, 0) == []


def read_a_commit(store: Store, fence: int) -> None:
    assert commit(store, claimed(store))
    assert len(store.acknowledgements("0", 0)) == 1


def restarted_after_a_commit(server: SnapshotServer) -> tuple[Store, int]:
    """A run of two agents, of which nothing is lost, and the fence of its controller."""
    store = server.store("run")
    fence = begin(store, 2)
    dispatch(store, fence, 0, 0)
    read_a_commit(store, fence)
    server.save()
    server.restart()
    return store, fence


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
        lambda store, fence: store.keep_minds(fence, 7),
        lambda store, fence: store.kept_minds(),
        lambda store, fence: store.minds([0]),
        lambda store, fence: store.collect(fence, 0),
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
    with pytest.raises(StoreError, match="has lost its newest commits"):
        server.store("run").claim("test", LEASE_S)  # a worker need not wait for the controller
    assert list(store.nodes().steps) == [0, 0]  # readers go on
    assert store.world(0)[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_controller_accepts_a_server_that_has_lost_nothing(
    server: SnapshotServer, asynchronous: bool
) -> None:
    store, fence = restarted_after_a_commit(server)
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
    accept(store)
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
        calls = commands.claims(
            store.prefix, "test", LEASE_S, 5.0, 0, 1, own=True, number=commands.new_call_number()
        )
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
    accept(store)
    store._call("hold", claim.id, claim_token(claim), -1)
    repeated = claimed(store)
    assert repeated.step == 1
    assert from_parts(repeated.minds[0])["step"] == 1


def test_only_the_controllers_event_loop_accepts(server: SnapshotServer) -> None:
    """Its heartbeat and local workers may be ahead of what it has read."""
    store = server.store("run")
    fence = begin(store, 1)
    dispatch(store, fence, 0, 0)
    claim = claimed(store)
    server.save()
    server.restart()
    store.renew_lease(fence, 1)
    for call in (
        lambda: store.extend(claim, LEASE_S),
        lambda: store.claim("test", LEASE_S),
        lambda: commit(store, claim),
    ):
        with pytest.raises(StoreUnavailableError, match="has not confirmed yet"):
            call()
    accept(store)
    assert commit(store, claim)


def test_a_new_controller_knows_what_it_has_begun_with(server: SnapshotServer) -> None:
    store, worker = server.store("run"), server.store("run")
    dispatch(store, begin(store, 1), 0, 0)
    store.take_lease("test", 0)
    server.save()
    assert commit(worker, claimed(worker))  # by a worker that outlives the last controller
    assert list(store.nodes().steps) == [1]
    server.restart()
    with pytest.raises(StoreError, match="has lost its newest commits"):
        store.acknowledgements("0-1", 0)


def test_a_lost_fence_is_not_given_again(server: SnapshotServer) -> None:
    store, other = server.store("run"), server.store("run")
    begin(store, 1)
    server.save()
    lost = store.take_lease("one", 0)
    server.restart()
    fence = other.take_lease("other", 0)
    assert fence > lost
    with pytest.raises(FencedOutError):
        store.collect(lost, 0)
    server.save()
    server.restart()
    assert server.store("run").take_lease("third", 0) > fence


def test_calls_that_change_nothing_cannot_be_lost(server: SnapshotServer) -> None:
    store = server.store("run")
    fence = begin(store, 2)
    dispatch(store, fence, 0, 0)
    server.save()
    store.collect(fence, 0)
    dispatch(store, fence, 0, 0)
    server.restart()
    dispatch(store, fence, 0, 1)
    assert commit(store, claimed(store))


def test_a_full_server_is_accepted(server: SnapshotServer) -> None:
    """After the restart is accepted, the server can free memory by `collect`."""
    store, fence = restarted_after_a_commit(server)
    server.client.config_set("maxmemory", "1mb")
    store.collect(fence, 1)
    store.renew_lease(fence, 1)
