"""A cluster dispatched to a waiting worker is claimed for it at once."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from metropolis.store import commands
from metropolis.store.claim import Claim
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.redis import RedisStore
from metropolis.store.scripts import call
from metropolis.types import Dispatch
from tests.store.lines import LEASE_S, begin, claimed, commit, dispatch


class Waiter:
    """A worker's call for clusters, command by command."""

    def __init__(self, store: RedisStore, lease_s: float = LEASE_S, most: int = 8) -> None:
        self._store = store
        self._client = redis.Redis.from_url(store.url)
        self._said: Generator[Any, Any, list[Claim]] = commands.claims(
            store.prefix, "test", lease_s, 60.0, 0, most, True, commands.new_call_number()
        )
        self._waiting = self._ask(next(self._said))

    def _ask(self, command: Any) -> Any:
        """Execute the commands before the blocking one; return that."""
        while isinstance(command, commands.Script):
            reply = call(self._client, command.name, self._store.prefix, *command.arguments)
            command = self._said.send(reply)
        return command

    def told(self, lost: bool = False) -> list[Claim]:
        """Return the awaited claims; if the reply is lost, the call asks again."""
        reply = self._client.execute_command(*self._waiting.arguments)
        try:
            self._ask(self._said.send(None if lost else reply))
        except StopIteration as end:
            found: list[Claim] = end.value
            return found
        raise AssertionError("it waits on")


@pytest.fixture
def store(shared: EmbeddedServer) -> Iterator[RedisStore]:
    name = uuid.uuid4().hex
    store = shared.store(name)
    assert isinstance(store, RedisStore)
    yield store
    with suppress(redis.ResponseError):
        shared.remove(name)


@pytest.fixture
def fence(store: RedisStore) -> int:
    """The fence of a run in which "test" has committed the first step of all three agents."""
    fence = begin(store, 3)
    for agent in range(3):
        dispatch(store, fence, 0, agent)
        assert commit(store, claimed(store))
    return fence


def agents(claims: list[Claim]) -> list[tuple[int, ...]]:
    return [claim.agents for claim in claims]


def test_it_is_told_at_once(store: RedisStore, fence: int) -> None:
    waiter = Waiter(store)
    dispatch(store, fence, 1, 0)
    assert [queued.worker for queued in store.inspect().claimed] == ["test"]
    (claim,) = waiter.told()
    assert (claim.step, claim.agents, dict(claim.minds)) == (1, (0,), {})
    assert commit(store, claim)


def test_a_lost_reply_is_told_again(store: RedisStore, fence: int) -> None:
    waiter = Waiter(store)
    dispatch(store, fence, 1, 0)
    (claim,) = waiter.told(lost=True)
    assert commit(store, claim)


def test_what_came_too_late_is_told_to_the_next_call(store: RedisStore, fence: int) -> None:
    Waiter(store)  # its connection ends
    dispatch(store, fence, 1, 0)
    dispatch(store, fence, 1, 1)  # the call asked for one reply
    assert agents([claimed(store), claimed(store)]) == [(0,), (1,)]
    assert store.claim("test", LEASE_S) is None
    assert store.inspect().counts["claims"] == 3 + 2


def test_no_more_than_it_has_room_for(store: RedisStore, fence: int) -> None:
    waiter = Waiter(store, most=2)
    store.dispatch(fence, [Dispatch(1, (agent,)) for agent in range(3)], {}, 0)
    assert agents(waiter.told()) == [(0,), (1,)]
    assert agents(store.claims("other", LEASE_S)) == [(2,)]


def test_others_are_not_told(store: RedisStore, fence: int) -> None:
    dispatch(store, fence, 1, 0)
    assert commit(store, claimed(store, "other"))
    waiter = Waiter(store)
    dispatch(store, fence, 2, 0)
    assert not store.inspect().claimed
    assert agents(store.claims("other", LEASE_S)) == [(0,)]
    dispatch(store, fence, 1, 1)
    assert agents(waiter.told()) == [(1,)]


def test_the_dead_keep_nothing_for_good(store: RedisStore, fence: int) -> None:
    Waiter(store, lease_s=0.05)
    dispatch(store, fence, 1, 0)
    assert store.claim("other", LEASE_S) is None
    assert agents(store.claims("other", LEASE_S, 5.0)) == [(0,)]
    assert store.inspect().counts["expired"] == 1
