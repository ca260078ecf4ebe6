"""Servers that answer with what no answer should be, and what it costs."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from math import nan
from typing import Any

import pytest

from metropolis import MetropolisError
from metropolis.llm import (
    LLM,
    Client,
    Completion,
    LLMError,
    MalformedError,
    RateLimitedError,
    RefusedError,
    UnavailableError,
)
from metropolis.llm.backends import pool
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.http import parse_url
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.base import NotJSONError
from metropolis.llm.usage import Prices
from tests.llm.fakes import Fake, request
from tests.llm.raw_server import RawServer, answer
from tests.llm.test_answers import CHAT, EVENTS, chat_answer, chunk
from tests.llm.virtual_loop import run_virtually

BACKENDS = [SGLang, Compatible, lambda url: OpenAIClient(url, "tiny")]
OURS = BACKENDS[:2]
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
KEY = "sk-very-secret"


def ended(finish: str, **usage: int) -> bytes:
    choice = {"index": 0, "finish_reason": finish, "message": {"content": ""}}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


async def call(backend: Any, **options: Any) -> Client:
    """A client that has sent one call, whose error it has raised."""
    client = Client(backend, retries=0, **options)
    try:
        await client.call(request(messages=CHAT))
    finally:
        await client.close()
    return client


@pytest.mark.parametrize("backend", OURS)
def test_a_switch_of_protocols_is_no_answer(backend: Any) -> None:
    async def ask() -> None:
        async with RawServer(lambda _: [UPGRADE]) as server:
            with pytest.raises(MalformedError, match="it switches to another protocol"):
                await call(backend(server.url))

    asyncio.run(ask())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("finish", ["content_filter", "tool_calls"])
def test_what_was_generated_is_charged_though_it_cannot_be_used(backend: Any, finish: str) -> None:
    async def ask() -> None:
        body = ended(finish, prompt_tokens=10, completion_tokens=200)
        async with RawServer(lambda _: [answer(body)]) as server:
            client = Client(backend(server.url), max_tokens=100_000, prices=Prices(1e6, 2e6))
            with pytest.raises(RefusedError, match=finish):
                await client.call(request(messages=CHAT, max_tokens=300))
            assert client.gate.token_budget.spent == 210
            assert (client.total.lost_tokens, client.total.cost) == (210, 10 + 400)
            assert client.gate.in_flight == 0
            await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("priced", [False, True])
def test_lost_tokens_are_counted_without_a_budget(priced: bool) -> None:
    async def ask() -> None:
        async with RawServer(lambda _: [answer(b"{")]) as server:
            prices = Prices(1e6, 1e6) if priced else None
            client = Client(Compatible(server.url), retries=0, prices=prices)
            with pytest.raises(MalformedError):
                await client.call(request(messages=CHAT, max_tokens=50))
            lost = client.total.lost_tokens
            assert lost > 50
            assert client.total.cost == (lost if priced else 0)
            await client.close()

    asyncio.run(ask())


def test_an_answer_that_is_nested_too_deep_is_not_json() -> None:
    for text in ("[" * 1200, "[" * 100_000):
        with pytest.raises(NotJSONError):
            Completion(text, 1, 40, "stop").json()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_route_that_the_server_lacks_is_named(backend: Any) -> None:
    async def ask() -> None:
        async with RawServer(lambda _: [answer(b"Not Found", status="404 Not Found")]) as server:
            with pytest.raises(RefusedError, match=r"HTTP 404 for /v1/.*completions: Not Found"):
                await call(backend(f"{server.url}"))

    asyncio.run(ask())


@pytest.mark.parametrize("status", ["401 Unauthorized", "200 OK"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_that_the_server_repeats_is_not_shown(
    backend: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("SGLANG_API_KEY", KEY)
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()

    async def ask() -> None:
        async with RawServer(lambda _: [answer(body, status=status)]) as server:
            with pytest.raises(LLMError, match="Incorrect API key") as error:
                await call(backend(server.url))
            assert KEY not in str(error.value)
            assert KEY.encode() in server.posts[0]

    asyncio.run(ask())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY} x", "clé", "sk\udcff"])
def test_a_key_that_no_header_can_contain_is_refused(
    backend: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("SGLANG_API_KEY", key)
    with pytest.raises(MetropolisError, match=r"^\w+_API_KEY: write a key of printable") as error:
        backend("http://127.0.0.1:9")
    assert KEY not in str(error.value)


def test_an_empty_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")

    async def ask() -> None:
        async with RawServer(lambda _: [answer(chat_answer("yes"))]) as server:
            url = server.url.replace("://", "://user:password@")
            await call(Compatible(url, "tiny"))
            assert b"Authorization: Basic " in server.posts[0]

    asyncio.run(ask())


def test_a_limit_that_ends_is_waited_for() -> None:
    left = 3

    def limited(_: Any) -> Completion | RateLimitedError:
        nonlocal left
        left -= 1
        return Completion("", 1, 1, "stop") if left >= 0 else RateLimitedError("slow down", 1.0)

    async def ask() -> list[Any]:
        nonlocal left
        client = Client(Fake(limited), retries=1)
        calls = [asyncio.ensure_future(client.call(request(agent=n))) for n in range(30)]
        while not all(one.done() for one in calls):
            await asyncio.sleep(1)
            left = 3
        assert client.total.calls == 30
        return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(one, Completion) for one in run_virtually(ask()))


def test_a_limit_that_does_not_end_is_waited_for_as_long_as_an_outage() -> None:
    fake = Fake(lambda r: RateLimitedError("slow down", 1.0))

    async def ask() -> float:
        with pytest.raises(RateLimitedError):
            await Client(fake, retries=1, patience_s=20).call(request())
        return asyncio.get_running_loop().time()

    assert 20 <= run_virtually(ask()) <= 30


def test_a_retry_after_of_an_overloaded_server_holds_all_calls() -> None:
    answers = iter([UnavailableError("queue full", 20.0)])
    fake = Fake(lambda r: next(answers, Completion("", 1, 1, "stop")))

    async def ask() -> None:
        client = Client(fake)
        early = asyncio.ensure_future(client.call(request()))
        await asyncio.sleep(5)
        await asyncio.gather(early, client.call(request(agent=1)))

    run_virtually(ask())
    assert [when for when, _ in fake.sent] == [0, 21, 21]


@pytest.mark.parametrize("backend", BACKENDS)
def test_retry_after_of_503_is_read(backend: Any) -> None:
    async def ask() -> None:
        refusal = answer(b"{}", "Retry-After: 3", status="503 Service Unavailable")
        async with RawServer(lambda _: [refusal]) as server:
            with pytest.raises(UnavailableError) as error:
                await call(backend(server.url), timeout_s=2.0)
            assert error.value.retry_after_s == 3

    asyncio.run(ask())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "context length exceeded", "code": 400}, RefusedError),
        ({"message": "the engine was lost", "code": 503}, UnavailableError),
        ("it broke", UnavailableError),
    ],
)
def test_an_error_in_place_of_an_answer_is_told(
    backend: Any, stream: bool, error: Any, kind: type[LLMError]
) -> None:
    body = json.dumps({"error": error}).encode()
    sent = EVENTS + chunk(b"data: " + body + b"\n\n") if stream else answer(body)

    async def ask() -> None:
        async with RawServer(lambda _: [sent]) as server:
            client = Client(backend(server.url), retries=0)
            reason = error if isinstance(error, str) else error["message"]
            on_piece = (lambda _: None) if stream else None
            with pytest.raises(kind, match=f"with an error: {reason}"):
                await client.answer(request(messages=CHAT), on_piece)
            await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b": ping\n\n"])
def test_a_connection_is_used_again_after_a_stream(begin: bytes) -> None:
    pieces = [
        {"choices": [{"delta": {"content": "one"}}]},
        {"choices": [{"delta": None, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
    ]
    events = begin + b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces)
    whole = [EVENTS + chunk(events + b"data: [DONE]\n\n"), 0.02, b"0\r\n\r\n"]

    async def ask() -> None:
        async with RawServer(lambda _: whole) as server:
            client = Client(Compatible(server.url, "tiny"))
            for step in range(5):
                llm = LLM(client, agent=0, step=step, seed=0)
                assert [piece async for piece in llm.stream("x")] == ["one"]
                await asyncio.sleep(0.1)
            await client.close()
            assert server.connections == 1

    asyncio.run(ask())


def test_a_stream_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "END_S", 0.05)
    event = json.dumps({"choices": [{"text": "one", "finish_reason": "stop"}]}).encode()
    events = EVENTS + chunk(b"data: " + event + b"\n\ndata: [DONE]\n\n")

    async def ask() -> None:
        async with RawServer(lambda _: [events, 60.0]) as server:
            client = Client(Compatible(server.url, "tiny"))
            pieces = [one async for one in client.stream(request(prompt="x"))]
            assert pieces[0] == "one"
            assert len(server.writers) == 1
            async with asyncio.timeout(30):
                while not all(writer.transport.is_closing() for writer in server.writers):
                    with suppress(ConnectionError):
                        for writer in server.writers:
                            writer.write(b"1\r\nx\r\n")
                            await writer.drain()
                    await asyncio.sleep(0.02)
            await client.close()

    asyncio.run(ask())


def test_a_second_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CONNECT_S", 5.0)
    silent = socket.socket()
    silent.bind(("127.0.0.2", 0))
    silent.listen(0)
    port = silent.getsockname()[1]
    full = [socket.socket() for _ in range(8)]
    for one in full:  # its backlog is full: it answers nothing
        one.setblocking(False)
        one.connect_ex(("127.0.0.2", port))

    async def ask() -> None:
        served = await asyncio.start_server(lambda r, w: None, "127.0.0.1", port)
        loop = asyncio.get_running_loop()
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host in ("127.0.0.2", "127.0.0.1")
        ]

        async def resolve(*_: Any, **__: Any) -> Any:
            return found

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        connections = pool.Connections(parse_url(f"http://model.example:{port}"))
        connection = await connections.take()
        assert connection.address == ("127.0.0.1", port)
        connection.close()
        connections._address = ("127.0.0.2", port)
        monkeypatch.setattr(pool, "CONNECT_S", 0.2)
        with pytest.raises(ConnectionError, match="no connection within"):
            await connections.take()
        monkeypatch.setattr(pool, "CONNECT_S", 5.0)
        (await connections.take()).close()
        served.close()

    try:
        asyncio.run(ask())
    finally:
        for one in (silent, *full):
            one.close()


@pytest.mark.parametrize("price", [nan, -1.0, float("inf")])
def test_prices_are_numbers(price: float) -> None:
    with pytest.raises(MetropolisError, match=r"output_per_million is .* at least 0"):
        Prices(1.0, price)


def test_messages_may_change_after_the_call() -> None:
    fake = Fake()
    message = {"role": "user", "content": "before"}

    async def ask() -> None:
        client = Client(fake, concurrency=1)
        llm = LLM(client, agent=0, step=0, seed=0)
        first = asyncio.ensure_future(llm.chat("first"))
        second = asyncio.ensure_future(llm.chat([message]))
        await asyncio.sleep(0)
        message["content"] = "after"
        await asyncio.gather(first, second)

    run_virtually(ask())
    assert [sent.text for _, sent in fake.sent] == ["first", "before"]
