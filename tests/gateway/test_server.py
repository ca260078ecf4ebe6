"""The gateway over HTTP with stub engines: requests, answers and errors."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import openai
import pytest

from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.limits import Limits
from tests.gateway.engines import (
    StubEngine,
    answer_to,
    chat,
    gateway_before,
    pieces_of,
    until,
)
from tests.gateway.raw_clients import connected, post_of

PATHS = ("/v1/chat/completions", "/v1/completions")


async def post(url: str, body: Any, **options: Any) -> tuple[int, bytes, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | options.pop("headers", {})
    path = options.pop("path", PATHS[0])
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, data=data, headers=headers, **options) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


def test_the_openai_client_is_served_streaming_and_not() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, _):
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
            assert [model.id async for model in client.models.list()] == ["tiny"]
            body: Any = {"model": "tiny", "messages": [{"role": "user", "content": "why"}]}
            whole = await client.chat.completions.create(**body)
            assert whole.choices[0].message.content == "to why — ¿sí?"
            stream = await client.chat.completions.create(**body, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(pieces) == "to why!"
            plain = await client.completions.create(model="tiny", prompt="def")
            assert plain.choices[0].text == "t"
            await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("path", PATHS)
def test_bodies_and_answers_pass_byte_for_byte(path: str) -> None:
    body = b' {"messages": [{"role":"user", "content": "a\\u00e9"}],"prompt":"q", "x" : 1.50 } \n'

    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _):
            headers = {"Authorization": "Bearer secret", "X-Own": "7", "Accept-Encoding": "gzip"}
            status, answer, back = await post(url, body, headers=headers, path=f"{path}?a=1")
            assert (status, answer) == (200, answer_to("q"))
            assert back["X-Request-Id"] == "17"
            assert back["Content-Type"] == "application/json"
            assert engine.raw == [body]
            (seen,) = engine.headers
            assert (seen["Authorization"], seen["X-Own"]) == ("Bearer secret", "7")
            assert "Accept-Encoding" not in seen

    asyncio.run(ask())


def test_a_stream_passes_piece_for_piece_as_it_comes() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.pieces = asyncio.Semaphore(0)
        async with gateway_before(engine) as (url, gateway), aiohttp.ClientSession() as session:
            engine.pieces.release()
            async with session.post(url + PATHS[0], json=chat("why", stream=True)) as answer:
                assert answer.headers["Content-Type"] == "text/event-stream"
                for piece in pieces_of("why"):
                    assert await answer.content.readuntil(b"\n\n") == piece
                    engine.pieces.release()
                assert await answer.read() == b""
            await until(lambda: gateway.scheduling.in_flight == [0])

    asyncio.run(ask())


def test_an_error_of_the_engine_is_its_answer() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.status = 422
        async with gateway_before(engine) as (url, gateway):
            status, answer, _ = await post(url, chat("why"))
            assert (status, answer) == (422, answer_to("why"))
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("body", "headers", "sentence"),
    [
        (b"{", {}, "the body is not a JSON object"),
        (b'{"prompt": "\xff"}', {}, "the body is not a JSON object"),
        (b'{"other": "\xff"}', {}, "the body is not a JSON object"),
        (b"[1]", {}, "the body is not a JSON object"),
        (b'{"prompt": %b}' % (b"[" * 2000 + b"]" * 2000), {}, "the body is nested too deep"),
        (b'{"x": %b}' % (b"[" * 2000 + b"]" * 2000), {}, "the body is nested too deep"),
        (b"{}", {"Content-Encoding": "gzip"}, "the body is not encoded as its Content-Encoding"),
        (b"{}", {"X-Metropolis-Step": "x"}, "X-Metropolis-Step is 'x'; write a number"),
        (b"{}", {"X-Metropolis-Stages-Left": "-1"}, "Stages-Left is '-1'; write a number"),
        (b"{}", {"X-Metropolis-Stages-Left": "0"}, "Stages-Left is '0'; write a number from 1"),
        (b"{}", {"X-Metropolis-Speculative": "maybe"}, "Speculative is 'maybe'; write true or"),
    ],
)
def test_what_cannot_be_understood_is_a_400(
    body: bytes, headers: dict[str, str], sentence: str
) -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _):
            status, answer, _ = await post(url, body, headers=headers)
            assert status == 400
            assert sentence in json.loads(answer)["error"]["message"]
            assert not engine.raw

    asyncio.run(ask())


def test_bodies_have_a_bound_unpacked() -> None:
    bound, beyond = (b'{"prompt":"%b"}' % (b"a" * (100_000 - 13 + n)) for n in (0, 1))

    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine, limits=Limits(body_bytes=100_000)) as (url, _):
            for body, expected in ((bound, 200), (beyond, 413)):
                for data, headers in (
                    (body, {}),
                    (gzip.compress(body), {"Content-Encoding": "gzip"}),
                ):
                    status, *_ = await post(url, data, headers=headers)
                    assert status == expected
            assert engine.raw == [bound, bound]

    asyncio.run(ask())


def test_names_that_cannot_be_shown_are_refused_and_spoil_no_metrics() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, _), aiohttp.ClientSession() as session:
            head = post_of(b"", 2).removesuffix(b"\r\n")
            fields = b"Connection: close\r\nX-Metropolis-Function: a\xff\r\n\r\n"
            async with connected(url, head + fields + b"{}") as (reader, _):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"header X-Metropolis-Function begins with " in answer
            async with session.get(f"{url}/metrics") as metrics:
                assert metrics.status == 200

    asyncio.run(ask())


def test_other_paths_and_methods_are_refused_in_openai_form() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, _), aiohttp.ClientSession() as session:
            async with session.get(f"{url}/v1/files") as answer:
                assert answer.status == 404
                assert "/v1/files" in (await answer.json())["error"]["message"]
            async with session.get(url + PATHS[0]) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST")

    asyncio.run(ask())


def test_a_full_queue_pushes_back() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with gateway_before(engine, at_once=1, queue_limit=2) as (url, gateway):
            asked = [asyncio.create_task(post(url, chat(str(n)))) for n in range(3)]
            await until(lambda: len(gateway.scheduling) == 2)
            status, answer, headers = await post(url, chat("late"))
            assert (status, headers["Retry-After"]) == (429, "1")
            assert json.loads(answer)["error"]["message"].startswith("2 requests wait already")
            engine.open.set()
            assert [status for status, *_ in await asyncio.gather(*asked)] == [200] * 3
            assert gateway.metrics.refused == 1

    asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("owned_by", ["vllm", "sglang"])
def test_a_client_that_leaves_frees_the_engine(stream: bool, owned_by: str) -> None:
    async def ask() -> None:
        engine = StubEngine(owned_by)
        if stream:
            engine.pieces = asyncio.Semaphore(2)
        else:
            engine.open.clear()
        async with gateway_before(engine, at_once=1) as (url, gateway):
            asked = [asyncio.create_task(post(url, chat("a", stream=stream))) for _ in range(2)]
            await until(lambda: engine.raw and len(gateway.scheduling) == 1)
            await asyncio.sleep(0.05)  # the first pieces are in transit
            for one in asked:
                one.cancel()
            await until(lambda: engine.left == 1 and gateway.metrics.aborted == 2)
            assert (gateway.scheduling.in_flight, len(gateway.scheduling)) == ([0], 0)
            assert len(engine.raw) == 1
            if owned_by == "sglang":
                await until(lambda: engine.aborted == [engine.bodies[0]["rid"]])

    asyncio.run(ask())


@pytest.mark.usefixtures("patient_probes")
def test_a_thousand_connections_at_once() -> None:
    async def ask() -> None:
        engines = [StubEngine() for _ in range(2)]
        for engine in engines:
            engine.open.clear()
        async with gateway_before(*engines, dispatcher=RoundRobin) as (url, gateway):
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:

                async def one(n: int) -> bytes:
                    async with session.post(url + PATHS[0], json=chat(f"q{n}")) as answer:
                        return await answer.read()

                asked = [asyncio.create_task(one(n)) for n in range(1000)]
                await until(lambda: gateway.scheduling.in_flight == [500, 500])
                for engine in engines:
                    engine.open.set()
                answers = await asyncio.gather(*asked)
            assert answers == [answer_to(f"q{n}") for n in range(1000)]
            assert [engine.answered.total() for engine in engines] == [500, 500]

    asyncio.run(ask())


def test_metrics_and_health() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _), aiohttp.ClientSession() as session:
            await post(url, chat("why"), headers={"X-Metropolis-Function": 'pl"an'})
            async with session.get(f"{url}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                lines = (await answer.text()).splitlines()
            name = next(line for line in lines if line.startswith("metropolis_engine_up{"))
            assert name.endswith("} 1.0")
            (requests,) = (ln for ln in lines if ln.startswith("metropolis_requests_total{"))
            assert 'function="pl\\"an",status="200"} 1.0' in requests
            assert 'metropolis_latency_seconds_bucket{le="+Inf"} 1.0' in lines
            assert "metropolis_queue_length 0.0" in lines
            await post(url, chat("why"), headers={"X-Metropolis-Step": "x"})
            async with session.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            refused = 'metropolis_requests_total{engine="",function="",status="400"} 1.0'
            assert refused in lines
            async with session.get(f"{url}/health") as answer:
                assert answer.status == 200
            await engine.kill()
            async with session.get(f"{url}/v1/models") as answer:
                assert answer.status == 502
            async with session.get(f"{url}/health") as answer:
                assert (answer.status, list((await answer.json())["engines"].values())) == (
                    503,
                    [False],
                )
            await engine.start()

    asyncio.run(ask())
