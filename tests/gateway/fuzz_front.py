"""Fuzzes the gateway's HTTP front: hostile requests over sockets, with a strict engine.

Every answer is the gateway's, in OpenAI's format, and never 500; log lines contain nothing that
clients sent; the engine gets well-formed requests only; other clients are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.access import Access
from metropolis.gateway.engine_client import EngineClient
from metropolis.gateway.keys import Keys
from metropolis.gateway.limits import Limits
from metropolis.gateway.proxy import Gateway
from metropolis.gateway.routes import ORDERED
from metropolis.gateway.scheduler_driver import SchedulerDriver
from metropolis.gateway.server import Server
from metropolis.policy.agentix.policy import Plas
from metropolis.policy.fixed import Fcfs
from tests.gateway.engines import answer_to, chat, counting, pieces_of, until
from tests.gateway.hostile_requests import SECRET, hostile_request

BATCH = 64
"""Concurrent connections; after each batch an honest request must be answered."""
QUIET_S = 0.15
"""Time without data after which a connection is closed."""
KEY = "right-key-0123456789abcdef"
ANSWERS = frozenset((200, 204, *range(400, 500), 502, 503))
ERROR = {"message", "type", "param", "code"}
HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\r\n\x00]*")
REQUEST = re.compile(rb"(GET|POST|DELETE) /[^ \r\n]* HTTP/1\.1")


class FrontFailureError(Exception):
    """A failure and its input."""


class StrictEngine(asyncio.Protocol):
    """Records everything but well-formed single requests in the shared list `faults`."""

    def __init__(self, faults: list[str], posted: list[bytes], hidden: str) -> None:
        self._faults, self._posted, self._hidden = faults, posted, hidden.encode()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, rest = self._received.partition(b"\r\n\r\n")
            line, *fields = head.split(b"\r\n")
            lengths = [f[15:] for f in fields if f.lower().startswith(b"content-length:")]
            length = int(lengths[0]) if lengths else 0
            if len(rest) < length:
                return
            body, self._received = rest[:length], rest[length:]
            self._check(line, fields, lengths, body)
            self._transport.write(self._answer(line, body))

    def _check(self, line: bytes, fields: list[bytes], lengths: list[bytes], body: bytes) -> None:
        names = [field.partition(b":")[0].lower() for field in fields]
        is_plain = all(map(FIELD.fullmatch, fields)) and REQUEST.fullmatch(line)
        if not is_plain or len(lengths) > 1 or names.count(b"host") != 1:
            self._faults.append(f"the engine got {[line, *fields]!r}")
        if b"transfer-encoding" in names or b"content-encoding" in names:
            self._faults.append(f"the engine got an encoding: {fields!r}")
        if self._hidden and any(self._hidden in field for field in fields):
            self._faults.append(f"the engine got a client's key: {fields!r}")
        if is_ordered(line):
            self._posted.append(body)
            if not isinstance(json.loads(body), dict):
                self._faults.append(f"the engine got the body {body[:200]!r}")

    def _answer(self, line: bytes, body: bytes) -> bytes:
        kind, content = b"application/json", b'{"data": [{"id": "tiny"}]}'
        if is_ordered(line):
            asked = json.loads(body)
            content = answer_to("why")
            if asked.get("stream") is True:
                kind, content = b"text/event-stream", b"".join(_events(asked))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        return head % (kind, len(content)) + content


def is_ordered(line: bytes) -> bool:
    """Whether the gateway parses the body of a request to this route."""
    method, path, _ = line.split(b" ")
    return method == b"POST" and path.partition(b"?")[0].decode("latin-1") in ORDERED


def _events(asked: dict[str, Any]) -> Iterable[bytes]:
    return pieces_of("why") if "messages" in asked else counting({"prompt": "why", "max_tokens": 3})


class Front:
    """A gateway with keys and an engine without priorities, or the reverse."""

    def __init__(self, folder: Path, has_keys: bool) -> None:
        self.faults: list[str] = []
        self.posted: list[bytes] = []
        self._keys_file = folder / "keys"
        self._has_keys = has_keys

    async def __aenter__(self) -> Front:
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        hidden = KEY if self._has_keys else ""
        self._engine = await asyncio.get_running_loop().create_server(
            lambda: StrictEngine(self.faults, self.posted, hidden), "127.0.0.1", 0
        )
        at = f"http://127.0.0.1:{self._engine.sockets[0].getsockname()[1]}"
        keys = None
        if self._has_keys:
            self._keys_file.write_text(f"tenant {KEY}\n")
            self._keys_file.chmod(0o600)
            keys = Keys(self._keys_file, self._said)
        policy = Fcfs() if self._has_keys else Plas()
        engine = EngineClient(at if self._has_keys else f"sglang:{at}")
        scheduling = SchedulerDriver(policy, LeastLoaded(Fleet.uniform(1, 100_000, 30.0)), 8, 100)
        self.gateway = Gateway([engine], scheduling, 60.0, self._said)
        limits = Limits(body_bytes=100_000, header_s=5.0, stall_s=5.0, idle_s=5.0)
        access = Access(origins=["https://chat.example"], keys=keys)
        self.server = Server(self.gateway, limits, access, self._said)
        self.url = await self.server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        self._engine.close()

    def _said(self, line: str) -> None:
        if SECRET[:12] in line or KEY[:12] in line or "\n" in line:
            self.faults.append(f"said {line!r}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        self.faults.append(f"not handled: {about!r}")

    async def send(self, sent: bytes, draw: Random) -> bytes:
        """Send data and return all that is received until the connection is quiet or closed."""
        port = int(self.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        received = b""
        try:
            cuts = sorted(
                draw.randrange(len(sent) + 1) for _ in range(draw.choice((0, 0, 0, 1, 3)))
            )
            for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                writer.write(sent[begin:end])
                await asyncio.sleep(0)
            ending = draw.random()
            if ending < 0.05:
                writer.transport.abort()
                return b""
            if ending < 0.1:
                writer.write_eof()
            while True:
                async with asyncio.timeout(QUIET_S):
                    piece = await reader.read(1 << 16)
                if not piece:
                    break
                received += piece
        except OSError:
            pass  # the server waits for more of the request, or has closed
        finally:
            writer.transport.abort()
        return received

    async def ask_honestly(self) -> None:
        """Raise FrontFailureError when an honest request gets a wrong answer."""
        headers = {"Authorization": f"Bearer {KEY}"}
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self.url}/v1/chat/completions", json=chat("why", n=2)) as answer,
        ):
            content = await answer.read()
            if (answer.status, content) != (200, answer_to("why")):
                raise FrontFailureError(f"an honest request got {answer.status} {content!r}")

    async def rest(self) -> None:
        """Check that nothing remains of requests whose clients disconnected."""
        scheduling, connections = self.gateway.scheduling, self.server._connections
        await until(lambda: not connections.open and scheduling.in_flight == [0] and not scheduling)
        if connections._body_bytes:
            raise FrontFailureError(
                f"{connections._body_bytes} bytes of bodies are counted forever"
            )


def check_answers(sent: bytes, received: bytes) -> None:
    """Raise FrontFailureError on an answer that is not the gateway's."""
    if b"HEAD" in sent:
        return  # no content follows
    while received:
        head = HEAD.match(received)
        if head is None:
            raise FrontFailureError(f"the answer {received[:200]!r}")
        status, received = int(head[1]), received[head.end() :]
        if status == 100:
            continue
        if status not in ANSWERS:
            raise FrontFailureError(f"status {status}")
        content, received = _content(head[2], received, status)
        if status >= 400:
            error = json.loads(content)["error"]
            if not isinstance(error["message"], str) or {*error} != {
                "message",
                "type",
                "param",
                "code",
            }:
                raise FrontFailureError(f"the error {error!r}")
            echoed = (
                sent if error["message"].startswith("header X-") or status in (404, 405) else b""
            )
            if SECRET[:12] in error["message"] and SECRET[:12].encode() not in _path(echoed):
                raise FrontFailureError(f"a secret came back: {error!r}")
        if SECRET[:12].encode() in head[2] or (status < 400 and SECRET[:12].encode() in content):
            raise FrontFailureError(f"a secret came back: {head[2]!r} {content!r}")


def _path(sent: bytes) -> bytes:
    """Return what may be echoed even if mutation moved a secret there: the request's path and its
    X-Metropolis headers."""
    lines = re.split(rb"[\r\n]+", sent)
    return b"".join(ln.partition(b"?")[0] for ln in lines if b" /" in ln or b"etropolis" in ln)


def _content(fields: bytes, received: bytes, status: int) -> tuple[bytes, bytes]:
    if status == 204:
        return b"", received
    length = re.search(rb"(?i)^content-length: (\d+)\r$", fields, re.MULTILINE)
    if length is not None:
        return received[: int(length[1])], received[int(length[1]) :]
    if b"transfer-encoding: chunked" not in fields.lower():
        return received, b""  # HTTP/1.0: up to the end of the connection
    content = b""
    while (chunk := re.match(rb"([0-9a-f]+)\r\n", received)) is not None:
        size, begin = int(chunk[1], 16), chunk.end()
        content += received[begin : begin + size]
        received = received[begin + size + 2 :]
        if not size:
            return content, received
    raise FrontFailureError(f"an answer without an end: {fields!r} {received[:100]!r}")


async def fuzz(folder: Path, seed: int, inputs: int, has_keys: bool, first: int = 0) -> None:
    """Send `inputs` inputs, `first` being the first number; raises FrontFailureError."""
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(handler.format(record))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        async with Front(folder, has_keys) as front:
            for begin in range(first, first + inputs, BATCH):
                numbers = range(begin, min(begin + BATCH, first + inputs))
                await asyncio.gather(*(_one(front, seed, number) for number in numbers))
                await front.ask_honestly()
                await front.rest()
                if front.faults or logged:
                    about = [*front.faults, *logged][0]
                    raise FrontFailureError(f"seed {seed}, inputs {numbers}: {about}")
    finally:
        logging.getLogger().removeHandler(handler)


async def _one(front: Front, seed: int, number: int) -> None:
    draw = Random(f"{seed} {number}")
    sent = hostile_request(draw, KEY)
    received = await front.send(sent, draw)
    try:
        check_answers(sent, received)
    except (FrontFailureError, ValueError, LookupError, TypeError) as error:
        about = f"seed {seed}, input {number}: {error!r}; sent {sent[:2000]!r}, got {received!r}"
        raise FrontFailureError(about) from error
