"""`metropolis bench stub-server`: an OpenAI-compatible server whose answers cost only waiting.

How long an answer takes is drawn by (seed, what is asked), never by order, so everybody who asks
the same things waits equally long.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from contextlib import AbstractContextManager
from math import log
from pathlib import Path
from random import Random

import click

from metropolis.bench import installed, server

MODEL = "stub"
SIGMA = 0.8
"""Of the lognormal latencies."""


def latency_s(seed: int, question: str, mean_s: float) -> float:
    """How long the answer to `question` takes; lognormal."""
    if not mean_s:
        return 0.0
    return Random(f"{seed} {question}").lognormvariate(log(mean_s) - SIGMA**2 / 2, SIGMA)


def stub_server(
    mean_s: float, seed: int, log_file: Path | None = None, port: int = 0
) -> AbstractContextManager[str]:
    """The URL of a server in a process of its own."""
    serve = "from metropolis.bench.stub_server import command; command()"
    options = ["--mean-ms", str(mean_s * 1000), "--seed", str(seed), "--port", str(port)]
    if log_file is not None:
        options += ["--log", str(log_file)]
    return server([*installed(serve), *options])


@click.command("stub-server")
@click.option("--mean-ms", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--port", default=0, help="[default: a free one]")
@click.option(
    "--log",
    "log_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Add a line here whenever something is asked or answered: which, the time in monotonic "
    "seconds, the sampling seed of the request. Answers then differ from request to request.",
)
def command(mean_ms: float, seed: int, port: int, log_file: Path | None) -> None:
    """Serve chats with lognormal latency until stopped; prints the URL."""
    asyncio.run(_serve(mean_ms / 1000, seed, port, log_file))


async def _serve(mean_s: float, seed: int, port: int, log_file: Path | None) -> None:
    listening = socket.create_server(("127.0.0.1", port), backlog=4096)
    note = None if log_file is None else os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    click.echo(f"http://127.0.0.1:{listening.getsockname()[1]}")
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(mean_s, seed) if note is None else _Logged(mean_s, seed, note),
        sock=listening,
        backlog=4096,
    )
    await server.serve_forever()


class _Connection(asyncio.Protocol):
    """As much HTTP as it takes: what the stub computes is taken from those it serves."""

    def __init__(self, mean_s: float, seed: int) -> None:
        self._mean_s, self._seed = mean_s, seed
        self._received = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._received += data
        while (head := self._received.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._received, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            body, self._received = self._received[head + 4 : end], self._received[end:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if not body:
            self._write(MODELS)
            return
        question = json.loads(body)["messages"][-1]["content"]
        wait_s = latency_s(self._seed, question, self._mean_s)
        if wait_s:
            self._loop.call_later(wait_s, self._write, CHAT)
        else:
            self._write(CHAT)


class _Logged(_Connection):
    """Answers as its seed and the request's have it, and writes down when."""

    def __init__(self, mean_s: float, seed: int, log_file: int) -> None:
        super().__init__(mean_s, seed)
        self._file = log_file

    def _answer(self, body: bytes) -> None:
        if not body:
            super()._answer(body)
            return
        key = json.loads(body)["seed"]
        self._note(ASKED, key)
        self._loop.call_later(latency_s(self._seed, f"{key}", self._mean_s), self._reply, key)

    def _reply(self, key: int) -> None:
        words = Random(f"{self._seed} {key}").choices(WORDS, k=3)
        self._write(_chat(" ".join(words)))
        self._note(ANSWERED, key)

    def _note(self, what: str, key: int) -> None:
        os.write(self._file, f"{what} {time.monotonic():.6f} {key}\n".encode())


def _chat(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    return _response(
        {
            "id": "answer",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18},
        }
    )


def _response(content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
MODELS = _response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
CHAT = _chat("I stay where I am.")
ASKED, ANSWERED = "asked", "answered"
WORDS = ("north", "south", "sun", "rain", "wind", "snow", "hail", "fog", "stay", "go")
