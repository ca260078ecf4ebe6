"""Limits of engines' answers; interim, second and endless answers reach no client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from metropolis.llm.backends.connection import AnswerLimits
from tests.gateway.engines import chat, gateway_before
from tests.gateway.test_command import running
from tests.gateway.test_server import post
from tests.llm.raw_server import RawServer, Script, answer
from tests.llm.test_answers import CHUNKED, EVENTS, chat_answer, chunk, repeated

SMALL = AnswerLimits(head_bytes=2048, body_bytes=600_000, event_bytes=20_000, time_s=0.5)
MODELS = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_interim_and_second_answers_of_an_engine_reach_nobody() -> None:
    def script(number: int) -> Script:
        late = answer(chat_answer(f"wrong {number}"))
        right = [MODELS, 0.01, MODELS + answer(chat_answer(f"right {number}"))]
        return [*right, late] if number % 2 else [*right[:-1], right[-1] + late]

    async def run() -> None:
        engine = RawServer(script)
        async with gateway_before(engine) as (url, _):
            for number in range(6):
                status, body, _ = await post(url, chat("why"))
                assert (status, body) == (200, chat_answer(f"right {number}"))
                await asyncio.sleep(0.02)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (lambda: repeated(CHUNKED, chunk(b"[1]," * 9999)), "is longer than 600,000 bytes"),
        (lambda: repeated(b"HTTP/1.1 200 OK\r\nA: ", b"a" * 999), "headers of more than 2,048"),
        (lambda: repeated(MODELS, MODELS * 9), "headers of more than 2,048 bytes"),
        (lambda: repeated(b"HTTP/1.1 200 OK\r\nA: ", b"a", 0.01), "took longer than 0.5 s"),
        (lambda: repeated(CHUNKED, chunk(b"a"), 0.01), "took longer than 0.5 s"),
    ],
)
def test_an_engines_answer_without_end_is_refused_once(
    script: Callable[[], Script], sentence: str
) -> None:
    async def run() -> None:
        engine = RawServer(lambda n: script())
        async with gateway_before(engine, answers=SMALL) as (url, gateway):
            status, body, _ = await post(url, chat("why"))
            assert status == 502
            assert sentence in json.loads(body)["error"]["message"]
            assert len(engine.posts) == 1  # not retried: another engine's answer would be the same
            assert gateway.scheduling.is_up == [True]
            assert gateway.scheduling.in_flight == [0]
            assert engine.sent_bytes < 20_000_000

    asyncio.run(run())


def test_a_stream_without_end_is_broken_off_by_its_time() -> None:
    async def run() -> None:
        engine = RawServer(lambda n: repeated(EVENTS, chunk(b'data: {"choices": []}\n\n'), 0.01))
        async with gateway_before(engine, answers=SMALL) as (url, _):
            status, body = await _streamed(url)
            assert status == 200
            assert b"took longer than 0.5 s" in body
            assert len(engine.posts) == 1

    asyncio.run(run())


def test_an_event_without_end_is_held_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.exchange.BUFFERED_BYTES_MAX", SMALL.event_bytes)

    async def run() -> None:
        engine = RawServer(lambda n: repeated(EVENTS, chunk(b"data: [" * 999)))
        async with gateway_before(engine, kind="sglang:") as (url, _):
            _, body = await _streamed(url)
            assert b"more than 20,000 bytes of text or event" in body
            assert sum(b"chat/completions" in post for post in engine.posts) == 1

    asyncio.run(run())


def test_the_limits_are_options_of_the_gateway() -> None:
    scripts: tuple[Callable[[], Script], ...] = (
        lambda: [answer(b" " * 2048 + chat_answer("a"))],
        lambda: repeated(CHUNKED, chunk(b"a"), 0.05),
        lambda: [answer(chat_answer("a"))],
    )

    async def run() -> None:
        async with RawServer(lambda n: scripts[n]()) as engine:
            options = ("--engine", engine.url, "--answer-limit", "2KiB", "--answer-s", "0.5")
            async with running(*options) as (url, _):
                answers = [await post(url, chat("why")) for _ in scripts]
                sentences = [body.decode() for _, body, _ in answers]
                assert [status for status, *_ in answers] == [502, 502, 200]
                assert "longer than 2,048 bytes" in sentences[0]
                assert "took longer than 0.5 s" in sentences[1]

    asyncio.run(run())


async def _streamed(url: str) -> tuple[int, bytes]:
    """Return the status and all received data, even if the stream breaks off."""
    import aiohttp

    body = b""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=chat("why", stream=True)) as reply,
    ):
        try:
            async for piece in reply.content.iter_any():
                body += piece
        except aiohttp.ClientError:
            pass
        return reply.status, body
