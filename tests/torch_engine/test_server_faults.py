"""Wrong requests, and an engine that fails or ends."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import aiohttp
import pytest

from metropolis.reuse.fixed import PrefixReuse
from metropolis.torch_engine.engine import Engine
from metropolis.torch_engine.metrics import Metrics
from metropolis.torch_engine.server import Server
from tests.torch_engine.test_engine import AMPLE
from tests.torch_engine.test_server import BASE, chat, served


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "gone"}, 404, "there is no model 'gone'; this engine serves base, chat"),
        ({"messages": []}, 400, "messages is missing or empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "than text"),
        ({"n": 2}, 400, "n is not supported by this engine"),
        ({"logprobs": True}, 400, "logprobs is not supported"),
        ({"tools": [{}]}, 400, "tools is not supported"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"stop": ["x"] * 17}, 400, "stop"),
        ({"stop": "x" * 300}, 400, "stop"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}, 400, "than text"),
        ({"response_format": {"type": "json_schema"}}, 400, "json_schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"enum": ["x" * 40_000]}},
                }
            },
            400,
            "the JSON schema has more than 32,768 bytes",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            400,
            "JSON schema cannot be followed",
        ),
        ({"max_tokens": 5000}, 400, "has room for 4,096 here"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"seed": 2**70}, 400, "seed"),
        ({"reuse": {"sender": "gone"}}, 400, "this engine serves base, chat"),
        (
            {"model": "chat", "reuse": {"sender": "base", "recompute": [[2, 9]]}},
            400,
            "not within the layers 0 to 4",
        ),
        (
            {"model": "chat", "reuse": {"sender": "base", "recompute": [[2, 3]]}},
            400,
            "inputs of layer 2 of 'base'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            400,
            "JSON schema cannot be followed",
        ),
    ],
    ids=str,
)
def test_wrong_requests_get_a_sentence(fields: dict[str, Any], status: int, message: str) -> None:
    async def ask() -> None:
        async with served() as (url, engine), aiohttp.ClientSession() as session:
            body = chat("base", "Who?") | fields
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert answer.status == status
                error = (await answer.json())["error"]["message"]
            assert message in error
            assert "\n" not in error
            assert engine.is_idle

    asyncio.run(ask())


def test_a_long_prompt_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that cannot fit is refused unread, and the rest is read in a thread."""

    def slow(*_: object, **__: object) -> list[int]:
        threads.append(threading.current_thread())
        return [2]

    threads: list[threading.Thread] = []
    monkeypatch.setattr(type(BASE.tokenizer), "apply_chat_template", slow)

    async def ask() -> None:
        async with served() as (url, _), aiohttp.ClientSession() as session:
            for content, status in (("x" * 200_000, 400), ("x", 200)):
                body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
                body["model"] = "base"
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    assert answer.status == status
                    if status == 400:
                        message = (await answer.json())["error"]["message"]
                        assert "200,000 characters; the model's context has 4,096" in message

    asyncio.run(ask())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_closing_ends_streams_with_a_sentence() -> None:
    async def ask() -> None:
        metrics = Metrics()
        engine = Engine([BASE], PrefixReuse(), AMPLE, on_prefill=metrics.note_prefill)
        server = Server(engine, metrics)
        url = await server.start("127.0.0.1", 0)
        async with aiohttp.ClientSession() as session:
            body = chat("base", "Who?", max_tokens=2500, ignore_eos=True, stream=True)
            answer = await session.post(f"{url}/v1/chat/completions", json=body)
            await answer.content.readany()
            async with asyncio.timeout(4):
                await server.close()
                assert b"the engine is shutting down" in await answer.content.read()

    asyncio.run(ask())


def test_a_wrong_encoding_is_a_wrong_request() -> None:
    async def ask() -> None:
        async with served() as (url, _), aiohttp.ClientSession() as session:
            headers = {"Content-Encoding": "gzip"}
            path = f"{url}/v1/chat/completions"
            async with session.post(path, data=b"no gzip", headers=headers) as answer:
                assert answer.status == 400
                assert "error" in await answer.json()

    asyncio.run(ask())


@pytest.mark.parametrize("body", [b"", b"[", b"7", b'{"a":' * 100_000, b"\xff"], ids=len)
def test_no_body_harms(body: bytes) -> None:
    async def ask() -> None:
        async with served() as (url, _), aiohttp.ClientSession() as session:
            for path in ("v1/chat/completions", "v1/completions", "abort_request"):
                async with session.post(f"{url}/{path}", data=body) as answer:
                    assert answer.status == 400
            async with session.get(f"{url}/nothing") as answer:
                assert answer.status == 404
                assert "error" in await answer.json()

    asyncio.run(ask())


def test_a_failed_engine_answers_and_is_unwell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that arrive before the fault, during it, and after it."""

    def failing() -> None:
        time.sleep(0.3)
        raise KeyError("gone")

    async def ask() -> None:
        metrics = Metrics()
        engine = Engine([BASE], PrefixReuse(), AMPLE, 8, on_prefill=metrics.note_prefill)
        server = Server(engine, metrics)
        url = await server.start("127.0.0.1", 0)
        monkeypatch.setattr(engine, "step", failing)
        async with aiohttp.ClientSession() as session:

            async def one(after_s: float) -> None:
                await asyncio.sleep(after_s)
                path = f"{url}/v1/chat/completions"
                async with session.post(path, json=chat("base", "Who?")) as answer:
                    assert answer.status == 500
                    message = (await answer.json())["error"]["message"]
                    assert message == "the engine failed: KeyError: 'gone'"

            async with asyncio.timeout(20):
                await asyncio.gather(*map(one, (0, 0.1, 0.15, 0.6)))
            async with session.get(f"{url}/health") as answer:
                assert answer.status == 503
        assert isinstance(await server.failure(), KeyError)
        await server.close()

    asyncio.run(ask())
