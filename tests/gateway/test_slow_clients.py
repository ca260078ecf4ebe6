"""Clients that do not read: the engine waits for them, but not forever.

Clients that do not send the announced body: nothing waits for them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.engine_client import EngineClient
from metropolis.gateway.limits import Limits
from metropolis.gateway.proxy import Gateway
from metropolis.gateway.scheduler_driver import SchedulerDriver
from metropolis.gateway.server import Server
from metropolis.policy.fixed import Fcfs
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.raw_clients import connected, post_of
from tests.gateway.test_preemption import Impatient, at_step, counted, text_of, words
from tests.gateway.test_server import PATHS, post

PIECES = 800
LARGE = counted("x" * 100_000, PIECES)
"""Every piece contains the first word: more than the sockets between engine and client buffer."""


@asynccontextmanager
async def reader_of(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield an answer whose head has arrived and of which only a few bytes are read ahead."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + PATHS[1], json=LARGE, headers=at_step(9), read_bufsize=1024) as answer,
    ):
        yield answer


async def steady(number: Callable[[], int]) -> int:
    """Return `number()` once it no longer changes."""
    last = -1
    while number() != last:
        last = number()
        await asyncio.sleep(0.5)
    return last


def test_the_engine_waits_for_its_client() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, gateway), reader_of(url) as answer:
            assert 0 < await steady(lambda: engine.sent) < PIECES / 2
            assert gateway.scheduling.in_flight == [1]
            assert text_of(await answer.read()) == words(PIECES)
            assert engine.sent == PIECES + 2
            await until(lambda: gateway.scheduling.in_flight == [0])

    asyncio.run(ask())


def test_a_client_that_takes_nothing_for_long_has_left() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with (
            gateway_before(engine, limits=Limits(stall_s=0.5)) as (url, gateway),
            reader_of(url),
        ):
            await until(lambda: engine.left == 1 and gateway.metrics.aborted == 1)
            assert engine.sent < PIECES
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())


def test_who_reads_no_answer_locks_nobody_out() -> None:
    """Neither routes without a key nor unordered ones hold a connection forever."""

    async def ask() -> None:
        class Large(StubEngine):
            def whole(self, body: dict[str, Any]) -> bytes:
                return b"x" * (32 << 20)

        engine = Large()
        limits = Limits(stall_s=0.5, connections=2)
        async with gateway_before(engine, limits=limits) as (url, gateway):
            port = int(url.rpartition(":")[2])
            loop = asyncio.get_running_loop()
            health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            embed = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n"
            with ExitStack() as stack:
                for sent in (health * 100_000, embed + b'{"prompt": "a"}'):
                    client = stack.enter_context(socket.socket())
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    client.setblocking(False)
                    await loop.sock_connect(client, ("127.0.0.1", port))
                    sending = asyncio.create_task(loop.sock_sendall(client, sent))
                    stack.callback(sending.cancel)
                await until(lambda: engine.raw)
                async with asyncio.timeout(20):
                    while await status_of(f"{url}/health") != 200:
                        await asyncio.sleep(0.1)
                assert gateway.metrics.early_rejections["connections"] > 0

    asyncio.run(ask())


async def status_of(url: str) -> int:
    """Return the status of a GET on a new connection."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


def test_a_client_that_sends_nothing_for_long_is_told_so() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with (
            gateway_before(engine, limits=Limits(stall_s=0.1)) as (url, gateway),
            connected(url, post_of(b"{", 100)) as (reader, _),
        ):
            assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 408 Request Timeout\r\n"
            assert b"no byte of the body arrived for 0.1 s" in await reader.readuntil(b"}}")
            assert (gateway.scheduling.in_flight, len(gateway.programs)) == ([0], 0)

    asyncio.run(ask())


def test_what_has_not_come_whole_holds_up_no_end() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        at = await engine.start()
        scheduling = SchedulerDriver(Fcfs(), LeastLoaded(Fleet.uniform(1, 1000, 30.0)), 8, 8)
        server = Server(Gateway([EngineClient(at)], scheduling, 60.0))
        url = await server.start("127.0.0.1", 0)
        asked = asyncio.create_task(post(url, counted("a", 1), path=PATHS[1]))
        await until(lambda: engine.raw)
        async with (
            connected(url, post_of(b"{", 100)),
            connected(url, post_of(b"{", 2)) as (late, late_writer),
        ):
            await until(lambda: len(server._handlings) == 3)
            ending = asyncio.create_task(server.drain())
            await asyncio.sleep(0)
            assert server.unanswered == 1
            late_writer.write(b"}")
            assert await late.readuntil(b"\r\n") == b"HTTP/1.1 503 Service Unavailable\r\n"
            engine.open.set()
            async with asyncio.timeout(20):
                await ending
            assert (await asked)[0] == 200
        await engine.kill()

    asyncio.run(ask())


class LargeEngine(StubEngine):
    """Answers with more than the sockets between gateway and client buffer."""

    def whole(self, body: dict[str, Any]) -> bytes:
        return b'"' + b"x" * (32 << 20) + b'"'


def test_the_end_waits_until_answers_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.server.GRACE_S", 0.01)

    async def ask() -> None:
        engine = LargeEngine()
        at = await engine.start()
        scheduling = SchedulerDriver(Fcfs(), LeastLoaded(Fleet.uniform(1, 1000, 30.0)), 8, 8)
        server = Server(Gateway([EngineClient(at)], scheduling, 60.0))
        url = await server.start("127.0.0.1", 0)
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + PATHS[0], json=chat("why"), read_bufsize=1024) as answer,
        ):
            ending = asyncio.create_task(server.drain())
            await steady(lambda: server.unanswered)
            assert not ending.done()
            assert await answer.read() == engine.whole({})
            await ending
        await engine.kill()

    asyncio.run(ask())


def test_who_is_behind_is_not_preempted() -> None:
    """Its exchange could not react before the client reads the pieces already sent."""

    async def ask() -> None:
        engine = StubEngine()
        async with (
            gateway_before(engine, policy=Impatient(), at_once=2) as (url, gateway),
            reader_of(url) as answer,
        ):
            await steady(lambda: engine.sent)
            engine.piece_s = 0.01
            asked = []
            for step, body in ((3, counted("long", 60)), (0, counted("short", 1))):
                one = post(url, body, path=PATHS[1], headers=at_step(step))
                asked.append(asyncio.create_task(one))
                await until(lambda: len(engine.raw) > len(asked))
            await asyncio.gather(*asked)
            assert gateway.metrics.preempted == 1
            assert [body["prompt"][:4] for body in engine.bodies[1:]] == ["long", "shor", "long"]
            engine.piece_s = 0.0
            assert text_of(await answer.read()) == words(PIECES)

    asyncio.run(ask())
