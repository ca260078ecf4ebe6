"""Limits of answers in bytes and time, and unsolicited answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from metropolis.llm import Backend, Client, Completion, LLMError, MalformedError, TimedOutError
from metropolis.llm.backends import sglang
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.connection import AnswerLimits
from metropolis.llm.backends.http import reason_in, seconds_of
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.connect import connect
from tests.llm.fakes import request
from tests.llm.raw_server import RawServer, Script, answer

SMALL = AnswerLimits(head_bytes=2048, body_bytes=600_000, event_bytes=20_000)
BACKENDS = {
    "sglang": lambda url: SGLang(url, limits=SMALL),
    "compatible": lambda url: Compatible(url, "tiny", limits=SMALL),
    "openai": lambda url: OpenAIClient(url, "tiny", limits=SMALL),
}
OURS = ["sglang", "compatible"]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = 1_000_000_000
CHAT = ({"role": "user", "content": "hello"},)


def chat_answer(text: str, **usage: Any) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": text}}
    counts = usage or {"prompt_tokens": 9, "completion_tokens": 2}
    return json.dumps({"choices": [choice], "usage": counts}).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def repeated(head: bytes, piece: bytes, pause_s: float | None = None) -> Iterator[bytes | float]:
    """Endless for the purposes of a test."""
    yield head
    for _ in range(ENDLESS // len(piece)):
        yield piece
        if pause_s is not None:
            yield pause_s


async def ask(backend: Backend, *, stream: bool = False, timeout_s: float = 20.0) -> str:
    client = Client(backend, retries=0, timeout_s=timeout_s)
    try:
        if not stream:
            return (await client.call(request(messages=CHAT))).text
        items = [item async for item in client.stream(request(messages=CHAT))]
        assert isinstance(items[-1], Completion)
        assert "".join(items[:-1]) == items[-1].text
        return items[-1].text
    finally:
        await client.close()


def failure(
    connect: Callable[[str], Backend], script: Callable[[], Script], **options: Any
) -> tuple[LLMError, RawServer]:
    async def run() -> tuple[LLMError, RawServer]:
        async with RawServer(lambda n: script()) as server:
            with pytest.raises(LLMError) as raised:
                await ask(connect(server.url), **options)
            return raised.value, server

    return asyncio.run(run())


ENDLESS_SCRIPTS: dict[str, tuple[Callable[[], Script], str]] = {
    "status line": (lambda: repeated(b"HTTP/1.1 200 ", b"O" * 1000), "headers of more than 2,048"),
    "header": (lambda: repeated(b"HTTP/1.1 200 OK\r\nA: ", b"a" * 1000), "headers of more than"),
    "headers": (lambda: repeated(b"HTTP/1.1 200 OK\r\n", b"A: a\r\n" * 99), "headers of more than"),
    "interim": (lambda: repeated(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 9), "headers of more"),
    "JSON": (lambda: repeated(CHUNKED + chunk(b"["), chunk(b"[1]," * 999)), "longer than 600,000"),
    "until closed": (lambda: repeated(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 9999), "longer than 600,"),
    "error": (
        lambda: repeated(CHUNKED.replace(b"200 OK", b"500 Oh"), chunk(b"sorry" * 999)),
        "longer than 600,000",
    ),
    "trailers": (
        lambda: repeated(CHUNKED + chunk(chat_answer("a")) + b"0\r\n", b"A: a\r\n" * 99),
        "trailers of more than 2,048",
    ),
    "size": (lambda: repeated(CHUNKED, b"0" * 999), "more than 2,048"),
}


@pytest.mark.parametrize("script", ENDLESS_SCRIPTS)
@pytest.mark.parametrize("backend", OURS)
def test_an_endless_answer_is_aborted(backend: str, script: str) -> None:
    sends, sentence = ENDLESS_SCRIPTS[script]
    error, server = failure(BACKENDS[backend], sends)
    assert isinstance(error, MalformedError)
    assert sentence in str(error) or "not HTTP" in str(error)
    assert "plan of 'agent 3' at step 14" in str(error)
    assert server.sent_bytes < 20_000_000  # including the sockets' buffers


@pytest.mark.parametrize("script", ["JSON", "until closed", "error"])
def test_the_openai_client_does_not_read_it_either(script: str) -> None:
    error, server = failure(BACKENDS["openai"], ENDLESS_SCRIPTS[script][0])
    assert "longer than 600,000" in str(error)
    assert server.sent_bytes < 20_000_000


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("piece", [b"data: [1", b"a\n", b"data: \n", b":\n\n", b"data:\n\n"])
def test_endless_events_and_streams_are_aborted(backend: str, piece: bytes) -> None:
    script = lambda: repeated(EVENTS, chunk(piece * 99))  # noqa: E731
    is_endless = piece.endswith(b"\n\n")  # the others are refused, however slow the machine
    timeout_s = 1.0 if is_endless else 60.0
    error, _ = failure(BACKENDS[backend], script, stream=True, timeout_s=timeout_s)
    assert isinstance(error, TimedOutError if is_endless else MalformedError)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nA: ", CHUNKED + chunk(b"["), EVENTS])
def test_a_slow_drip_ends_in_time(
    backend: str, stream: bool, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "ABORT_S", 0.3)  # the server answers an abort the same way
    piece = chunk(b" ") if head.endswith(b"\n") else b"a"
    script = lambda: repeated(head, piece if head else b"\r\n", 0.01)  # noqa: E731
    error, _ = failure(BACKENDS[backend], script, stream=stream, timeout_s=0.3)
    is_refused = backend == "openai" and not head  # it does not accept an empty line as HTTP
    assert is_refused or "gave no answer within 0.3 s" in str(error)


@pytest.mark.parametrize("backend", BACKENDS)
def test_interim_answers_are_skipped(backend: str) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

    async def run() -> None:
        async with RawServer(lambda n: [interim, 0.01, answer(chat_answer("right"))]) as server:
            backend_ = BACKENDS[backend](server.url)
            assert await ask(backend_) == "right"
            assert server.connections == 1

    asyncio.run(run())


@pytest.mark.parametrize("pause_s", [None, 0.02])
@pytest.mark.parametrize("backend", OURS)
def test_a_second_answer_reaches_no_call(backend: str, pause_s: float | None) -> None:
    def script(number: int) -> Script:
        if number:
            return [answer(chat_answer("right"))]
        late = answer(chat_answer("wrong"))
        right = answer(chat_answer("right"))
        return [right + late] if pause_s is None else [right, pause_s, late]

    async def run() -> None:
        async with RawServer(script) as server:
            client = Client(BACKENDS[backend](server.url), retries=0)
            assert (await client.call(request(messages=CHAT))).text == "right"
            await asyncio.sleep(0 if pause_s is None else 3 * pause_s)
            assert (await client.call(request(messages=CHAT))).text == "right"
            assert server.connections == 2
            await client.close()

    asyncio.run(run())


def test_a_second_answer_in_the_socket_reaches_no_call() -> None:
    async def run() -> None:
        async with RawServer(lambda n: [answer(chat_answer(f"{n}"))]) as server:
            backend = Compatible(server.url, "tiny")
            assert (await backend.complete(request(messages=CHAT))).text == "0"
            (idle,) = backend._server._connections._idle
            (writer,) = server.writers
            writer.write(answer(chat_answer("wrong")))
            while not idle._has_unread():  # no await: this loop does not read it
                pass
            assert (await backend.complete(request(messages=CHAT))).text == "1"
            assert server.connections == 2
            await backend.close()

    asyncio.run(run())


def test_a_probe_of_a_bare_url_ends_in_time_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.llm.backends.http.CHECK_S", 0.3)

    async def run() -> None:
        for head, piece in ((CHUNKED, chunk(b" ")), (CHUNKED[:-2] + b"A:", b"a")):
            slow = partial(repeated, head, piece, 0.05)
            async with RawServer(lambda n: [], slow) as server:
                with pytest.raises(LLMError, match=r"within 0\.3 s"):
                    await asyncio.to_thread(connect, server.url)
        monkeypatch.undo()
        async with RawServer(lambda n: [], lambda: repeated(CHUNKED, b"0" * 9999)) as server:
            with pytest.raises(LLMError, match=r"more than 65,536 bytes|not HTTP"):
                await asyncio.to_thread(connect, server.url)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("", None), ("soon", None), ("nan", None), ("-5", None), ("1e400", None),
        ("7", 7.0), (" 0.5 ", 0.5), ("9" * 5000, None), ("٣", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Wed, 21 Oct 2015 07:28:00", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0.0), ("Mon, 01 Jan 99999 00:00:00", None),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0), ("Mon, 01 Jan 2015 00:00:00 +999999", None),
        ("21 Oct", None), ("Wed, 21 Oct 2015 07", None), (",", None), ("\x00", None),
    ],
)  # fmt: skip
def test_every_retry_after_is_parsed_or_ignored(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds


def test_a_servers_reason_is_one_printable_line() -> None:
    assert reason_in(b'{"error": {"message": "no\\u001b[2J\\nkey"}}') == "no?[2J key"
    assert reason_in(b"[" * 100_000) == "[" * 200
    page = b"<!doctype html><head><Title>Not here &amp; not\nthere</Title></head><body>404</body>"
    assert reason_in(page) == "Not here & not there"
