"""Engines that are lost and return: no request is lost, none is answered twice."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import aiohttp
import pytest
from aiohttp import web

from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.exchange import LOSSES_MAX
from tests.gateway.engines import StubEngine, answer_to, chat, gateway_before, pieces_of, until
from tests.gateway.raw_clients import connected, post_of
from tests.gateway.test_plugins import Whimsical
from tests.gateway.test_preemption import counted, text_of, words
from tests.gateway.test_server import PATHS, post


@pytest.mark.parametrize("stream", [False, True])
def test_engines_killed_and_restarted_in_mid_load(stream: bool) -> None:
    async def one(url: str, n: int) -> None:
        if stream:
            status, answer, _ = await post(url, counted(f"q{n}", 5), path=PATHS[1])
            assert (status, text_of(answer)) == (200, words(5))
        else:
            status, answer, _ = await post(url, chat(f"q{n}"))
            assert (status, answer) == (200, answer_to(f"q{n}"))

    async def ask() -> None:
        engines = [StubEngine(latency_s=0.02) for _ in range(2)]

        def is_past(answers: int) -> bool:
            return sum(engine.answered.total() for engine in engines) > answers

        async with gateway_before(*engines, dispatcher=RoundRobin, at_once=8) as (url, gateway):
            asked = [asyncio.create_task(one(url, n)) for n in range(200)]
            for killed, answers in ((0, 20), (1, 60), (0, 100)):
                await until(partial(is_past, answers))
                await engines[killed].kill()
                await asyncio.sleep(0.1)
                await engines[killed].start()
            await asyncio.gather(*asked)
            assert gateway.metrics.retried > 0
            assert gateway.scheduling.in_flight == [0, 0]
            assert sum(gateway.metrics.requests.values()) == 200

    asyncio.run(ask())


def test_requests_wait_while_no_engine_answers() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, gateway):
            await engine.kill()
            asked = asyncio.create_task(post(url, chat("why")))
            await until(
                lambda: gateway.scheduling.is_up == [False] and len(gateway.scheduling) == 1
            )
            assert not asked.done()
            await engine.start()
            status, answer, _ = await asked
            assert (status, answer) == (200, answer_to("why"))

    asyncio.run(ask())


def test_dispatchers_are_told_once_of_an_engine_that_does_not_answer() -> None:
    told: list[int] = []

    class Told(RoundRobin):
        def lost(self, instance: int) -> None:
            told.append(instance)

    async def ask() -> None:
        engines = [StubEngine(), StubEngine()]
        engines[1].pieces = asyncio.Semaphore(2)
        async with gateway_before(*engines, dispatcher=Told) as (url, gateway):
            await post(url, chat("why"))
            begun = asyncio.create_task(post(url, chat("b", stream=True)))
            await until(lambda: engines[1].sent == 2)
            await engines[1].kill()
            await asyncio.gather(begun, return_exceptions=True)
            await until(lambda: gateway.pool.failed_probes[1] > 2)
            assert told == [1]
            await engines[1].start()
            await until(lambda: gateway.scheduling.is_up == [True, True])
            assert told == [1]

    asyncio.run(ask())


def test_dispatchers_are_told_of_an_engine_that_restarts_between_two_probes() -> None:
    told: list[int] = []

    class Told(RoundRobin):
        def lost(self, instance: int) -> None:
            told.append(instance)

    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with gateway_before(engine, dispatcher=Told) as (url, gateway):
            asked = asyncio.create_task(post(url, chat("why")))
            await until(lambda: engine.raw)
            engine.abort_connections()
            engine.open.set()
            assert (await asked)[1] == answer_to("why")
            assert told == [0]
            assert gateway.scheduling.is_up == [True]

    asyncio.run(ask())


def test_a_stream_that_is_broken_off_says_so_and_has_no_proper_end() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.pieces = asyncio.Semaphore(2)
        async with gateway_before(engine) as (url, gateway), aiohttp.ClientSession() as session:
            async with session.post(url + PATHS[0], json=chat("why", stream=True)) as answer:
                for piece in pieces_of("why")[:2]:
                    assert await answer.content.readuntil(b"\n\n") == piece
                await engine.kill()
                last = await answer.content.readuntil(b"\n\n")
                error = json.loads(last.removeprefix(b"data: "))["error"]
                assert error["message"].startswith("the engine at http://127.0.0.1:")
                assert "was lost" in error["message"]
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
            await until(lambda: gateway.scheduling.in_flight == [0])
            await engine.start()

    asyncio.run(ask())


class BreakingEngine(StubEngine):
    """Answers the first request of every connection with `reply`, if any; closes at the next."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self.reply = reply

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def kill(self) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = self.reply
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET /v1/models"):
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}')
                continue
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.raw.append(await reader.readexactly(length))
            if not reply:
                writer.transport.abort()
                return
            writer.write(reply)
            reply = b""


def test_what_kills_engines_is_given_up() -> None:
    async def ask() -> None:
        engine = BreakingEngine(b"")
        async with gateway_before(engine) as (url, gateway):
            status, answer, _ = await post(url, chat("poison"))
            assert status == 502
            assert "was lost" in json.loads(answer)["error"]["message"]
            assert len(engine.raw) == LOSSES_MAX
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())


def test_what_kills_engines_now_at_once_now_later_is_given_up_as_early() -> None:
    class Dying(StubEngine):
        async def _answer(self, request: web.Request) -> web.StreamResponse:
            self.raw.append(await request.read())
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            if len(self.raw) % 3 == 0:
                await answer.prepare(request)
                await answer.write(b'data: {"choices":[{"index":0,"text":" w"}]}\n\n')
                await asyncio.sleep(0.01)
            assert request.transport is not None
            request.transport.abort()
            return answer

    async def ask() -> None:
        engine = Dying()
        async with gateway_before(engine) as (url, gateway):
            with pytest.raises(aiohttp.ClientPayloadError):
                await post(url, counted("poison", 50), path=PATHS[1])
            assert len(engine.raw) == LOSSES_MAX
            await until(lambda: gateway.scheduling.in_flight == [0])

    asyncio.run(ask())


@pytest.mark.parametrize("kind", ["", "sglang:"])
def test_a_connection_closed_while_idle_is_no_loss(kind: str) -> None:
    async def ask() -> None:
        engine = BreakingEngine(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        async with gateway_before(engine, kind=kind) as (url, gateway):
            for n in range(3):
                status, answer, _ = await post(url, chat(f"q{n}"))
                assert (status, answer) == (200, b"{}")
            assert gateway.metrics.retried == 0
            assert gateway.scheduling.is_up == [True]
            assert len(engine.raw) == 5
            rids = {body.get("rid") for body in engine.bodies}
            assert len(rids) == (5 if kind else 1)

    asyncio.run(ask())


def test_a_stream_whose_rest_cannot_be_ranked_ends_with_the_error() -> None:
    """A second answer on its connection would be taken for a part of it."""

    async def ask() -> None:
        engine, policy = StubEngine(), Whimsical()
        engine.pieces = asyncio.Semaphore(2)
        async with gateway_before(engine, policy=policy) as (url, gateway):
            sent = post_of(json.dumps(counted("a", 9)).encode())
            async with connected(url, sent) as (reader, _):
                await reader.readuntil(b'" 1"')
                policy.is_good = False
                await engine.kill()
                rest = await reader.read()
            assert b"the policy Whimsical returned the rank" in rest
            assert b"HTTP/1.1" not in rest
            assert not rest.endswith(b"0\r\n\r\n")  # it is not complete
            assert {status for _, _, status in gateway.metrics.requests} == {500}
            policy.is_good = True
            await engine.start()

    asyncio.run(ask())


def test_many_requests_report_one_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (_, gateway):
            scheduler, downs = gateway.scheduling.scheduler, list[int]()
            down = scheduler.instance_down

            def counted_down(instance: int, now_s: float) -> None:
                downs.append(instance)
                down(instance, now_s)

            monkeypatch.setattr(scheduler, "instance_down", counted_down)
            for _ in range(3):
                gateway.pool.suspect(0, gateway.engines[0].lost(OSError("it is gone")))
            assert downs == [0]

    asyncio.run(ask())
