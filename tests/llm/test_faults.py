"""Failing servers: no call is lost, each is answered once or ends in a clear error."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from metropolis.llm import (
    Backend,
    Client,
    Completion,
    Journal,
    LLMError,
    MalformedError,
    RateLimitedError,
    RefusedError,
    Request,
    TimedOutError,
    UnavailableError,
)
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.journal import read_journal
from tests.llm.fakes import request
from tests.llm.faults import FAULTS, FaultyServer

RETRIES = 3
BACKENDS = {
    "sglang": SGLang,
    "compatible": lambda url: Compatible(url, "tiny"),
    "openai": lambda url: OpenAIClient(url, "tiny"),
}
Connect = Callable[[str], Backend]


@pytest.fixture(params=BACKENDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return BACKENDS[request.param]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.llm.pauses.FIRST_S", 0.005)


def chat(text: str, **changes: object) -> Request:
    return request(messages=({"role": "user", "content": text},), **changes)


@pytest.mark.parametrize("kind", ["chat", "prompt"])
def test_nothing_is_lost(kind: str, connect: Connect, tmp_path: Path) -> None:
    draw = random.Random(7)
    some = [None] * 8 + [fault for fault in FAULTS if fault != "hang"] * 2 + ["hang"]
    faults = [draw.choice(some) for _ in range(100 * (RETRIES + 1))]
    requests = [
        chat(f"call {n}", agent=n) if kind == "chat" else request(prompt=f"call {n}", agent=n)
        for n in range(100)
    ]
    journal = Journal(tmp_path / "journal")

    async def ask() -> list[Completion | BaseException]:
        async with FaultyServer(lambda number: faults[number]) as server:
            client = Client(
                connect(server.url), concurrency=40, timeout_s=2.0, retries=RETRIES, journal=journal
            )
            answers = await asyncio.gather(*map(client.call, requests), return_exceptions=True)
            assert max(server.attempts.values()) <= RETRIES + 1
            assert client.gate.in_flight == 0
            usage = client.usage["plan"]
            assert usage.calls + usage.failures == len(requests)
            attempts = usage.calls + usage.failures + usage.retries
            assert attempts >= len(server.requests)  # one that hangs may never get there
            await client.close()
        return answers

    answers = asyncio.run(ask())
    kept = dict(read_journal(journal.path))
    for number, answer in enumerate(answers):
        if isinstance(answer, Completion):
            assert answer == Completion(f"to call {number}", 5, 7, "stop")
        else:
            assert isinstance(answer, LLMError), answer
            assert f"plan of 'agent {number}' at step 14" in str(answer)
            assert "http://127.0.0.1:" in str(answer)
            assert f"({RETRIES + 1} attempts)" in str(answer)
    answered = [answer for answer in answers if isinstance(answer, Completion)]
    assert len(kept) == len(answered) > len(requests) // 3


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        ("rate limited", RateLimitedError, "HTTP 429: slow down"),
        ("error", UnavailableError, "HTTP 500: out of memory"),
        ("overloaded", UnavailableError, "HTTP 503: queue full"),
        ("hang", TimedOutError, "gave no answer within 0.2 s"),
        ("reset", UnavailableError, "cannot be reached"),
        ("malformed", MalformedError, "gave a malformed answer"),
        ("wrong", MalformedError, "gave a malformed answer"),
        ("unfinished", MalformedError, "gave a malformed answer"),
        ("unauthorised", RefusedError, "HTTP 401: bad key"),
        ("bad request", RefusedError, "HTTP 400: too long"),
    ],
)
def test_every_fault_has_its_error(
    fault: str, error: type[LLMError], sentence: str, connect: Connect
) -> None:
    async def ask() -> None:
        async with FaultyServer(lambda number: fault) as server:
            timeout_s = 0.2 if fault == "hang" else 30.0
            client = Client(connect(server.url), timeout_s=timeout_s, retries=0)
            with pytest.raises(error, match=sentence):
                await client.call(chat("a"))
            await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("backend", [SGLang, Compatible])
def test_a_truncated_answer_is_malformed(backend: Connect) -> None:
    async def ask() -> None:
        async with FaultyServer(lambda number: "cut") as server:
            client = Client(backend(server.url), retries=0)
            with pytest.raises(MalformedError, match="broke off its answer to plan of 'agent 3'"):
                await client.call(chat("a"))
            await client.close()

    asyncio.run(ask())


def test_an_answer_that_is_no_stream_is_malformed() -> None:
    async def ask(fault: str) -> None:
        async with FaultyServer(lambda number: fault) as server:
            client = Client(SGLang(server.url), retries=1)
            with pytest.raises(MalformedError):
                [piece async for piece in client.stream(chat("a"))]
            assert len(server.requests) == 2
            await client.close()

    for fault in ("cut", "malformed", "wrong"):
        asyncio.run(ask(fault))


def test_a_dead_address_is_reported_at_once(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    async def check() -> None:
        backend = connect(f"http://user:secret@127.0.0.1:{port}")
        with pytest.raises(
            UnavailableError, match=f"at http://127.0.0.1:{port}.* cannot"
        ) as raised:
            await backend.check()
        assert "secret" not in str(raised.value)
        with pytest.raises(UnavailableError, match=r"plan of 'agent 3' at step 14.*\(2 attempts\)"):
            await Client(backend, retries=1, patience_s=0).call(chat("a"))
        await backend.close()

    asyncio.run(check())


def test_the_key_is_never_shown(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("SGLANG_API_KEY", "sk-secret")

    async def ask() -> None:
        async with FaultyServer(lambda number: "unauthorised") as server:
            client = Client(connect(server.url))
            with pytest.raises(RefusedError) as raised:
                await client.call(chat("a"))
            assert server.headers[0]["Authorization"] == "Bearer sk-secret"
            assert "secret" not in str(raised.value)
            await client.close()

    asyncio.run(ask())
