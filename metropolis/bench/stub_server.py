"""`metropolis bench stub-server`: an OpenAI-compatible server that only waits before it answers.

The latency of an answer is drawn by (seed, prompt), never by order: equal requests have equal
latencies. Answers are one fixed text, or those of a scenario's scripted author.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import log
from pathlib import Path
from random import Random
from typing import Any

import click

from metropolis.bench import METROPOLIS, server
from metropolis.bench._scripted_answers import ScriptedAnswers
from metropolis.command_options import Number
from metropolis.durable import reported
from metropolis.listening import cannot_listen, url_at
from metropolis.llm.placement import GATEWAY
from metropolis.types import MetropolisError
from metropolis.world.scenario import make_scenario

HOST = "127.0.0.1"
MODEL = "stub"
SIGMA = 0.8
"""Sigma of the lognormal latencies."""
MEAN_MS_MAX = 1e9


def latency_s(seed: int, question: str, mean_s: float) -> float:
    """Draw the lognormal latency of the answer to `question`."""
    if not mean_s:
        return 0.0
    key = f"{seed} {question}".encode(errors="surrogatepass")  # JSON may hold a lone surrogate
    return Random(key).lognormvariate(log(mean_s) - SIGMA**2 / 2, SIGMA)


def stub_server(mean_s: float, seed: int, *options: str) -> AbstractContextManager[str]:
    """Run a stub server in its own process, with further `options`; yield its URL."""
    options += ("--mean-ms", str(mean_s * 1000), "--seed", str(seed))
    return server([*METROPOLIS, "bench", "stub-server", *options])


@click.command("stub-server")
@click.option("--mean-ms", type=Number(0, MEAN_MS_MAX), default=0.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
@click.option(
    "--log",
    "log_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append a line for every request, answer, cancelled request, and answer that the client "
    "may not have read: its kind, the time in monotonic seconds, the sampling seed of the request. "
    "Answers then differ from request to request.",
)
@click.option(
    "--scenario",
    help="Answer as the scripted author of this world, to a run that uses no gateway; give "
    "--agents and --seed as for the run.",
)
@click.option("--agents", type=click.IntRange(min=1), help="[default: the world's]")
def command(
    mean_ms: float,
    seed: int,
    port: int,
    log_file: Path | None,
    scenario: str | None,
    agents: int | None,
) -> None:
    """Serve chats with lognormal latency until stopped; prints the URL.

    Serves /v1/models and /v1/chat/completions and answers other requests with status 400. Streams
    are sent in one piece.
    """
    if scenario is None and agents is not None:
        raise click.UsageError("--agents requires --scenario")
    if scenario is not None and log_file is not None:
        raise click.UsageError("--log draws its own answers; leave out --scenario")
    mean_s = mean_ms / 1000
    if log_file is not None:
        with reported(log_file):
            log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        asyncio.run(_serve(port, lambda: _Logged(mean_s, seed, log)))
    elif scenario is not None:
        answers = ScriptedAnswers(make_scenario(scenario, agents=agents, seed=seed))
        asyncio.run(_serve(port, lambda: _Scripted(mean_s, seed, answers)))
    else:
        asyncio.run(_serve(port, lambda: _Connection(mean_s, seed)))


async def _serve(port: int, connection: Callable[[], _Connection]) -> None:
    try:
        listening = socket.create_server((HOST, port), backlog=4096)
    except OSError as error:
        raise cannot_listen(HOST, port, error, "--port") from None
    click.echo(url_at("http", listening.getsockname()))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connection, sock=listening, backlog=4096)
    await server.serve_forever()


class _Connection(asyncio.Protocol):
    """Minimal HTTP: the stub's CPU time is taken from the processes under test."""

    def __init__(self, mean_s: float, seed: int) -> None:
        self._mean_s, self._seed = mean_s, seed
        self._received = b""
        self._models = MODELS
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the functions of the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._write, self._close = transport.write, transport.close

    def data_received(self, data: bytes) -> None:
        """Answer all complete requests."""
        self._received += data
        while (head := self._received.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._received, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            if length is None and not self._received.startswith(b"GET "):
                self._write(NO_LENGTH)  # the next request cannot be found
                self._close()
                return
            is_chat = self._received.startswith(CHATS)
            is_listing = self._received.startswith(LISTING)
            headers, body = self._received[:head], self._received[head + 4 : end]
            self._received = self._received[end:]
            chat = _parse_chat(body) if is_chat else None
            if chat is not None:
                self._answer(chat, headers)
            else:
                self._write(self._models if is_listing else NO_CHAT)

    def _answer(self, chat: dict[str, Any], headers: bytes) -> None:  # noqa: ARG002
        wait_s = latency_s(self._seed, chat["messages"][-1]["content"], self._mean_s)
        answer = _streamed(TEXT, chat) if chat.get("stream") else ANSWER
        if wait_s:
            self._loop.call_later(wait_s, self._write, answer)
        else:
            self._write(answer)


class _Logged(_Connection):
    """Draws answers from its seed and the request's, and logs the times."""

    def __init__(self, mean_s: float, seed: int, log_file: int) -> None:
        super().__init__(mean_s, seed)
        self._file = log_file
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self._answered: tuple[int, float] | None = None
        """The last answer: its key and time, unless another request has followed."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Requests without answers are cancelled; an answer just sent may not have been read."""
        if self._answered is not None and time.monotonic() - self._answered[1] < UNREAD_S:
            self._log(DROPPED, self._answered[0])
        for key, timer in self._waiting.items():
            timer.cancel()
            self._log(CANCELLED, key)

    def _answer(self, chat: dict[str, Any], headers: bytes) -> None:  # noqa: ARG002
        key = chat.get("seed")
        if not isinstance(key, int):
            self._write(NO_SEED)
            return
        self._log(ASKED, key)
        self._answered = None
        wait_s = latency_s(self._seed, f"{key}", self._mean_s)
        self._waiting[key] = self._loop.call_later(wait_s, self._reply, key, chat)

    def _reply(self, key: int, chat: dict[str, Any]) -> None:
        self._waiting.pop(key, None)  # None: sent twice over this connection
        text = " ".join(Random(f"{self._seed} {key}").choices(WORDS, k=3))
        self._write(_streamed(text, chat) if chat.get("stream") else _whole(text))
        self._log(ANSWERED, key)
        self._answered = key, time.monotonic()

    def _log(self, what: str, key: int) -> None:
        os.write(self._file, f"{what} {time.monotonic():.6f} {key}\n".encode())


class _Scripted(_Connection):
    """Answers as a scripted author."""

    def __init__(self, mean_s: float, seed: int, answers: ScriptedAnswers) -> None:
        super().__init__(mean_s, seed)
        self._models, self._answers = GATEWAY_MODELS, answers

    def _answer(self, chat: dict[str, Any], headers: bytes) -> None:
        try:
            completion = self._answers.answer(chat, headers)
        except MetropolisError as error:
            self._write(_refusal(str(error)))
            return
        wait_s = latency_s(self._seed, chat["messages"][-1]["content"], self._mean_s)
        tokens = completion.prompt_tokens, completion.output_tokens
        if chat.get("stream"):
            answer = _streamed(completion.text, chat)
        else:
            answer = _whole(completion.text, completion.finish_reason, tokens)
        self._loop.call_later(wait_s, self._write, answer)


def _parse_chat(body: bytes) -> dict[str, Any] | None:
    """Parse `body` as a chat request; return None if it is not one."""
    try:
        chat: dict[str, Any] = json.loads(body)
        _ = chat["messages"][-1]["content"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return chat


def _whole(text: str, finish_reason: str = "stop", tokens: tuple[int, int] = (12, 6)) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    usage = dict(zip(USAGE, (*tokens, sum(tokens)), strict=True))
    answer = {**ABOUT, "object": "chat.completion", "choices": [choice], "usage": usage}
    return _response("200 OK", json.dumps(answer))


def _streamed(text: str, chat: dict[str, Any]) -> bytes:
    """Return the answer as events: the text, its end and, if requested, its usage."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    chunks: list[dict[str, Any]] = [
        {"choices": [choice]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    options = chat.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        chunks.append({"choices": [], "usage": USAGE})
    events = [json.dumps({**ABOUT, "object": "chat.completion.chunk", **one}) for one in chunks]
    content = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    return _response("200 OK", content, "text/event-stream")


def _refusal(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return _response("400 Bad Request", json.dumps({"error": error}))


def _response(status: str, content: str, kind: str = "application/json", more: str = "") -> bytes:
    body = content.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHATS, LISTING = b"POST /v1/chat/completions", b"GET /v1/models"
"""Prefixes of requests."""
ABOUT = {"id": "answer", "created": 0, "model": MODEL}
USAGE = {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18}
_LIST = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
MODELS = _response("200 OK", _LIST)
GATEWAY_MODELS = _response("200 OK", _LIST, more=f"{GATEWAY}: 1\r\n")
"""Clients send headers to gateways only."""
TEXT = "I stay where I am."
ANSWER = _whole(TEXT)
NO_CHAT = _refusal("use GET /v1/models, or POST /v1/chat/completions with messages as JSON")
NO_LENGTH = _refusal("a request needs a Content-Length: chunked bodies are not supported")
NO_SEED = _refusal("a server with --log needs a whole number as seed in every request")
ASKED, ANSWERED, CANCELLED, DROPPED = "asked", "answered", "cancelled", "dropped"
UNREAD_S = 0.25
"""A client that closes its connection within this time after an answer may not have read it."""
WORDS = ("north", "south", "sun", "rain", "wind", "snow", "hail", "fog", "stay", "go")
