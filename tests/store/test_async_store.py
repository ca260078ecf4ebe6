"""The Redis store used from an event loop."""

from __future__ import annotations

import asyncio
import uuid
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store import commands, pipelined_connection
from metropolis.store.base import (
    AsyncStore,
    FencedOutError,
    Server,
    Store,
    StoreError,
    StoreUnavailableError,
)
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.memory import MemoryServer
from metropolis.store.pipelined_connection import PipelinedConnection
from metropolis.store.redis import RedisStore
from metropolis.types import Dispatch
from tests.store.conftest import KINDS
from tests.store.lines import LEASE_S, begin, dispatch, execution_of

ANSWER = Completion("yes", 1, 1, "stop")


@pytest.fixture
def run(server: Server) -> Iterator[tuple[Store, int]]:
    name = uuid.uuid4().hex
    store = server.store(name)
    yield store, begin(store, 8)
    server.remove(name)


def test_a_link_does_what_its_store_does(run: tuple[Store, int]) -> None:
    store, fence = run

    async def steps() -> None:
        async_store = store.async_store()
        last = "0"
        for step in range(3):
            clusters = [Dispatch(step, (agent,)) for agent in range(8)]
            await async_store.dispatch(fence, clusters, {0: 1}, step)
            claims = await async_store.claims("test", LEASE_S, 1.0, most=8, own=True)
            assert [claim.agents for claim in claims] == [(agent,) for agent in range(8)]
            keys = [Key(agent, step, "plan", "digest", 0) for agent in range(8)]
            await asyncio.gather(*(async_store.keep_answer(key, ANSWER, "me") for key in keys))
            committed = await asyncio.gather(
                *(async_store.commit(claim, execution_of(claim)) for claim in claims)
            )
            assert committed == [True] * 8
            found = await async_store.acknowledgements(last, 1.0)
            assert [one.execution.agents for one in found] == [claim.agents for claim in claims]
            last = found[-1].id
        assert await async_store.claims("test", LEASE_S, 0.01, most=8, own=True) == []
        assert await async_store.acknowledgements(last, 0.01) == []
        with pytest.raises(StoreError, match="knows of no acknowledgement"):
            await async_store.acknowledgements(f"9{last}", 0.0)
        with pytest.raises(FencedOutError):
            await async_store.dispatch(fence - 1, [], {}, 0)
        await async_store.close()

    asyncio.run(steps())
    about = store.inspect()
    assert list(about.steps) == [3] * 8
    assert about.counts["answers"] == 24


def test_a_link_in_memory_that_one_worker_closes_ends_the_waits_of_others() -> None:
    server = MemoryServer()
    store = server.store("run")
    begin(store, 1)

    async def steps() -> None:
        async_store = store.async_store()
        waiting = asyncio.ensure_future(async_store.claims("test", LEASE_S, 0.01, most=1, own=True))
        await asyncio.sleep(0)
        await async_store.close()
        assert await asyncio.wait_for(waiting, 10) == []

    asyncio.run(steps())
    assert not any(server.run_states["run"].watches.values())  # nobody waits any more


@pytest.mark.parametrize("kind", KINDS[1:])
def test_who_waits_is_told(
    server_of: Callable[[str], Server], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For clusters without an owner and clusters it ran last; otherwise it would have to poll."""
    monkeypatch.setattr(commands, "WAIT_S", 60.0)
    server = server_of(kind)
    name = uuid.uuid4().hex
    store = server.store(name)
    fence = begin(store, 1)

    async def told(step: int) -> None:
        async_store = store.async_store()
        waiting = asyncio.ensure_future(async_store.claims("test", LEASE_S, 60.0, most=8, own=True))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await async_store.dispatch(fence, [Dispatch(step, (0,))], {}, step)
        async with asyncio.timeout(30):
            (claim,) = await waiting
        assert await async_store.commit(claim, execution_of(claim))
        await async_store.close()

    for step in range(3):
        asyncio.run(told(step))
    server.remove(name)


def test_waits_do_not_hold_up_one_another(
    run: tuple[Store, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "WAIT_S", 60.0)
    store, fence = run

    async def steps() -> None:
        async_store = store.async_store()
        claims = {
            asyncio.ensure_future(async_store.claims(name, LEASE_S, 60.0, most=1, own=True))
            for name in ("one", "two")
        }
        acknowledged = asyncio.ensure_future(async_store.acknowledgements("0", 60.0))
        async with asyncio.timeout(30):
            for agent in range(2):
                await asyncio.sleep(0.05)  # the calls wait for the server
                await async_store.dispatch(fence, [Dispatch(0, (agent,))], {}, 0)
                (ended, *_), claims = await asyncio.wait(claims, return_when=FIRST_COMPLETED)
                (claim,) = ended.result()
                assert await async_store.commit(claim, execution_of(claim))
                (first,) = await acknowledged
                assert first.execution.agents == (0,)
        await async_store.close()

    asyncio.run(steps())


def test_more_waits_than_threads_of_the_event_loop_hold_up_nothing() -> None:
    store = MemoryServer().store("run")
    workers = 40  # asyncio has at most 32 threads
    fence = begin(store, workers)

    async def steps() -> None:
        async_store = AsyncStore(store)
        claims = [
            asyncio.ensure_future(async_store.claims(name, LEASE_S, 5.0, most=1, own=True))
            for name in map(str, range(workers))
        ]
        await asyncio.sleep(0)  # they are asked before the dispatch
        clusters = [Dispatch(0, (agent,)) for agent in range(workers)]
        await async_store.dispatch(fence, clusters, {}, 0)
        found = [claim.agents for each in await asyncio.gather(*claims) for claim in each]
        assert sorted(found) == [cluster.agents for cluster in clusters]
        await async_store.close()

    asyncio.run(steps())


def test_what_is_asked_at_the_same_moment_goes_out_together(
    shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    pack = pipelined_connection.pack_command

    async def ask() -> None:
        together = PipelinedConnection(shared.url)
        await together.ask("PING")
        monkeypatch.setattr(
            pipelined_connection, "pack_command", lambda c: (sent.append(len(c)), pack(c))[1]
        )
        reads = shared.client.info("stats")["total_reads_processed"]
        found = await asyncio.gather(*(together.ask("ECHO", str(i)) for i in range(50)))
        assert found == [str(i).encode() for i in range(50)]
        # the two INFOs count as reads
        assert shared.client.info("stats")["total_reads_processed"] - reads <= 3
        await together.close()

    asyncio.run(ask())
    assert len(sent) == 50


def test_a_server_that_ends_and_comes_back(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        store = server.store("run")
        fence = begin(store, 2)

        async def steps() -> None:
            async_store = store.async_store()
            dispatch(store, fence, 0, 0)
            (claim,) = await async_store.claims("test", LEASE_S, 1.0, most=1, own=True)
            waiting = asyncio.ensure_future(
                async_store.claims("test", LEASE_S, 30.0, most=1, own=True)
            )
            await asyncio.sleep(0.05)
            await asyncio.to_thread(server.restart)
            with pytest.raises(StoreUnavailableError):
                await waiting
            try:
                committed = await async_store.commit(claim, execution_of(claim))
            except StoreUnavailableError:  # only now is the connection found broken
                store.acknowledgements("0", 0)  # the controller accepts the restarted server
                committed = await async_store.commit(claim, execution_of(claim))
            assert committed
            await async_store.close()

        asyncio.run(steps())


@pytest.mark.parametrize("answers_handshakes", [True, False])
def test_a_server_that_is_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers_handshakes: bool
) -> None:
    monkeypatch.setattr(pipelined_connection, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(pipelined_connection, "_WATCH_S", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer at most the handshake."""
        while data := await reader.read(1 << 16):
            if answers_handshakes and (b"CLIENT" in data or b"SELECT" in data):
                writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()

    async def ask() -> None:
        path = str(tmp_path / "socket")
        async with await asyncio.start_unix_server(silent, path):
            async_store = RedisStore(None, f"unix://{path}", "run").async_store()
            async with asyncio.timeout(30):
                with pytest.raises(StoreUnavailableError, match=r"silent for 0\.1 s"):
                    await async_store.dispatch(1, [], {}, 0)
            await async_store.close()

    asyncio.run(ask())


def test_closing_ends_a_wait_with_an_error(
    shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined_connection, "CLOSE_S", 0.05)

    async def close_early() -> None:
        connection = PipelinedConnection(shared.url)
        waiting = asyncio.ensure_future(connection.ask("BLPOP", uuid.uuid4().hex, 30))
        await asyncio.sleep(0.05)
        await connection.close()
        with pytest.raises(redis.ConnectionError, match="closed"):
            await waiting

    asyncio.run(close_early())


def test_a_server_may_end_while_a_connection_is_being_closed(tmp_path: Path) -> None:
    leave = asyncio.Event()

    async def leaving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer only the handshake, and go."""
        while b"PING" not in (data := await reader.read(1 << 16)):
            writer.write(b"+OK\r\n" * data.count(b"*"))
        await leave.wait()
        writer.close()

    async def close_late() -> None:
        path = str(tmp_path / "socket")
        async with await asyncio.start_unix_server(leaving, path):
            connection = PipelinedConnection(f"unix://{path}")
            asked = asyncio.ensure_future(connection.ask("PING"))
            await asyncio.sleep(0.05)
            closing = asyncio.ensure_future(connection.close())
            await asyncio.sleep(0)
            leave.set()
            await closing
            with pytest.raises(redis.ConnectionError):
                await asked

    asyncio.run(close_late())
