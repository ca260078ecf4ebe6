"""`metropolis bench stub-server`: an OpenAI-compatible server whose answers cost only waiting.

How long an answer takes is drawn by (seed, what is asked), never by order, so everybody who asks
the same things waits equally long.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import log
from random import Random

import click

MODEL = "stub"
SIGMA = 0.8
"""Of the lognormal latencies."""


def latency_s(seed: int, question: str, mean_s: float) -> float:
    """How long the answer to `question` takes; lognormal."""
    if not mean_s:
        return 0.0
    return Random(f"{seed} {question}").lognormvariate(log(mean_s) - SIGMA**2 / 2, SIGMA)


@contextmanager
def stub_server(mean_s: float, seed: int) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    serve = "from metropolis.bench.stub_server import command; command()"
    process = subprocess.Popen(
        [sys.executable, "-c", serve, "--mean-ms", str(mean_s * 1000), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


@click.command("stub-server")
@click.option("--mean-ms", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--port", default=0, help="[default: a free one]")
def command(mean_ms: float, seed: int, port: int) -> None:
    """Serve chats with lognormal latency until stopped; prints the URL."""
    asyncio.run(_serve(mean_ms / 1000, seed, port))


async def _serve(mean_s: float, seed: int, port: int) -> None:
    listening = socket.create_server(("127.0.0.1", port), backlog=4096)
    click.echo(f"http://127.0.0.1:{listening.getsockname()[1]}")
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(mean_s, seed), sock=listening, backlog=4096
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


def _response(content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
MODELS = _response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
CHAT = _response(
    {
        "id": "answer",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "I stay where I am."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18},
    }
)
