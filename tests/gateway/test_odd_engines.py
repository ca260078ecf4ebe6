"""Engines and clients that do what none should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import aiohttp
import pytest

from metropolis.gateway.responses import FirstEvent
from metropolis.llm import LLM, Client
from metropolis.llm.backends.compatible import Compatible
from tests.gateway.engines import chat, gateway_before, until
from tests.gateway.test_loss import BreakingEngine
from tests.gateway.test_server import post
from tests.llm.raw_server import MODELS, RawServer, Script, answer
from tests.llm.test_answers import EVENTS, chat_answer, chunk
from tests.llm.test_odd_servers import UPGRADE


def test_a_switch_of_protocols_loses_the_engine_until_the_next_probe() -> None:
    looks: Iterator[Script] = iter([[answer(MODELS)], [UPGRADE]])

    async def ask() -> None:
        engine = RawServer(
            lambda n: [UPGRADE] if n == 0 else [answer(chat_answer("yes"))],
            lambda: next(looks, [answer(MODELS)]),
        )
        async with gateway_before(engine) as (url, gateway):
            await until(lambda: len(engine.gets) >= 2)
            status, body, _ = await post(url, chat("q"))
            assert (status, json.loads(body)) == (200, json.loads(chat_answer("yes")))
            assert gateway.metrics.retried == 1
            await until(lambda: gateway.scheduling.is_up == [True])

    asyncio.run(ask())


def test_a_failing_probe_does_not_end_the_probes() -> None:
    async def ask() -> None:
        logged: list[str] = []
        engine = RawServer(lambda _: [answer(chat_answer("yes"))])
        async with gateway_before(engine, log=logged.append) as (_, gateway):
            pool, probe = gateway.pool, gateway.pool.engines[0].probe

            async def failing() -> object:
                pool.engines[0].probe = probe  # type: ignore[method-assign]
                raise ValueError("odd")

            pool.engines[0].probe = failing  # type: ignore[method-assign,assignment]
            pool._suspected[0].set()
            await until(lambda: any("odd" in line for line in logged))
            seen = len(engine.gets)
            pool._suspected[0].set()
            await until(lambda: len(engine.gets) > seen)

    asyncio.run(ask())


def test_what_breaks_connections_is_not_sent_over_each_of_them() -> None:
    """Each idle connection could have been closed by the engine, but only one is tried."""

    class Poisoned(BreakingEngine):
        poisoned = 0

        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET /v1/models"):
                    writer.write(answer(b'{"data":[]}'))
                    continue
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                if b"poison" in await reader.readexactly(length):
                    self.poisoned += 1
                    writer.transport.abort()
                    return
                await asyncio.sleep(0.1)
                writer.write(answer(b"{}"))

    async def ask() -> None:
        engine = Poisoned(b"")
        async with gateway_before(engine) as (url, _):
            await asyncio.gather(*(post(url, chat(f"q{n}")) for n in range(20)))
            status, _, _ = await post(url, chat("poison"))
            assert status == 502
            assert engine.poisoned <= 10  # five losses, each after one idle connection at most

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/v1/promote", json.dumps({"program": "x" * 15_000}), "at most 200 printable"),
        ("/v1/promote", json.dumps({"program": "a\nb"}), "at most 200 printable"),
        ("/v1/embeddings", f'{{"model":[{"[]," * 1_999_999}[]]}}', "values"),
    ],
    ids=("long", "two lines", "many values"),
)
def test_bodies_that_would_cost_memory_or_time_are_refused(
    path: str, body: str, sentence: str
) -> None:
    async def ask() -> None:
        engine = RawServer(lambda _: [answer(b"{}")])
        async with gateway_before(engine) as (url, gateway):
            async with (
                aiohttp.ClientSession() as session,
                session.post(url + path, data=body) as reply,
            ):
                assert reply.status == 400
                assert sentence in await reply.text()
            assert engine.posts == []
            assert len(gateway.promotions) == 0

    asyncio.run(ask())


def test_a_response_is_known_after_a_comment() -> None:
    first = json.dumps({"type": "response.created", "response": {"id": "resp-1"}}).encode()
    event = FirstEvent()
    assert event.id_in(b": ping\n\n") is None
    assert event.id_in(b"data: " + first + b"\n\n") == "resp-1"


STREAM = b"".join(
    b"data: " + json.dumps(piece).encode() + b"\n\n"
    for piece in (
        {"choices": [{"delta": {"content": "one"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
    )
)


def test_streams_through_the_gateway_count_as_answered() -> None:
    async def ask() -> None:
        engine = RawServer(
            lambda _: [EVENTS + chunk(STREAM + b"data: [DONE]\n\n"), 0.02, b"0\r\n\r\n"]
        )
        async with gateway_before(engine) as (url, gateway):
            backend = Compatible(f"{url}/v1", "tiny")
            client = Client(backend)
            await backend.check()
            for step in range(5):
                llm = LLM(client, agent=0, step=step, seed=0)
                assert [piece async for piece in llm.stream("x")] == ["one"]
            await client.close()
            await until(lambda: sum(gateway.metrics.requests.values()) == 5)
            assert {status for _, _, status in gateway.metrics.requests} == {200}
            assert gateway.metrics.aborted == 0

    asyncio.run(ask())


@pytest.mark.parametrize("last", [b"", b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n"])
def test_a_client_that_leaves_after_the_last_event_has_been_answered(last: bytes) -> None:
    async def ask() -> None:
        engine = RawServer(lambda _: [EVENTS + chunk(STREAM + last), 60.0])
        async with gateway_before(engine) as (url, gateway):
            async with aiohttp.ClientSession() as session:
                body = json.dumps(chat("q", stream=True))
                async with session.post(f"{url}/v1/chat/completions", data=body) as reply:
                    got = b""
                    while not got.endswith(STREAM + last):
                        got += await reply.content.readany()
                    reply.close()
            await until(lambda: sum(gateway.metrics.requests.values()) == 1)
            ((_, _, status),) = gateway.metrics.requests
            assert status == (200 if last else 499)
            assert gateway.metrics.aborted == (not last)
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())
