"""HTTP client of one engine: an SGLang, vLLM or other OpenAI-compatible server.

Answers are forwarded as they arrive; their connections are reused if possible.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from metropolis.gateway.access import CREDENTIALS
from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.payload import Payload, encoded
from metropolis.gateway.priority_quantizer import LAST, Priorities
from metropolis.gateway.probing import (
    KINDS,
    METROPOLIS,
    SGLANG,
    VLLM,
    Model,
    kind_of,
    named,
    traits_of,
)
from metropolis.gateway.routes import ORDERED
from metropolis.llm.backends.connection import (
    AnswerLimitError,
    AnswerLimits,
    BrokenAnswerError,
    Connection,
)
from metropolis.llm.backends.http import ABORT_S, JSONServer, bare_url, parse_url
from metropolis.llm.backends.pool import Connections
from metropolis.llm.base import LLMError, MalformedError, RefusedError, UnavailableError
from metropolis.llm.placement import PREFIX
from metropolis.types import MetropolisError

CONNECTION_HEADERS = frozenset(
    (
        "connection", "content-length", "host", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers that are not forwarded."""
VLLM_PRIORITY = "X-Vllm-Priority"
"""In vLLM, it takes precedence over the priority in the body."""
DROPPED_HEADERS = CONNECTION_HEADERS | {
    "accept-encoding", "content-encoding", "expect", VLLM_PRIORITY.lower(),
}  # fmt: skip
"""Headers of requests that are not forwarded: the gateway sends a complete, decompressed body, and
the policy's priority."""
CAPACITY_TOKENS = 400_000
"""Default KV cache size of an engine: 8 billion parameters on 80 GB."""
TOKENS_PER_S = 30.0
"""Decoding speed of one request there in a full batch."""
PROBE_S = 5.0
LAST_ABORTS_S = 1.0
"""Timeout of aborts when the gateway closes, shorter than ABORT_S."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""Detects a machine that vanished silently after 35 s."""


LIMITS = AnswerLimits(body_bytes=256 << 20, time_s=3600.0)
"""Limits of an engine's answer; batches of embeddings are the largest."""


PREEMPTIONS = (b"sglang:num_retracted_requests_total", b"vllm:num_preemptions_total")
"""Metrics that count the requests preempted by the engine for lack of memory."""


class _Models(msgspec.Struct):
    data: list[Model] | None = None


class _Abort(NamedTuple):
    """Arguments of SGLang's abort_request."""

    rid: str
    authorization: str | None
    """The client's header of this name."""


class Probe(NamedTuple):
    """The result of a probe."""

    is_up: bool
    """Whether the engine answers."""
    sentence: str
    """The result in one sentence, for users."""
    models: frozenset[str] | None = None
    """Names of the models that the engine lists; None: it gave no list."""


class Reply:
    """An engine's answer: the first piece of a stream, or the whole of any other, has arrived."""

    def __init__(self, engine: EngineClient, connection: Connection, abort: _Abort | None) -> None:
        self._engine, self._connection, self._abort = engine, connection, abort
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.whole: bytes | None = None
        """None for a stream."""

    async def begin(self, request: bytes) -> None:
        """Send `request` and read the answer's first piece; raises OSError and others."""
        self._connection.send(request)
        self.status = await self._connection.status()
        fields = [(name.decode("latin-1"), value) for name, value in self._connection.fields]
        self.headers = _forwarded(fields, CONNECTION_HEADERS)
        kind = self._connection.headers.get(b"content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            self.whole = await self._connection.content()
        self._pieces = self._connection.chunks()
        self._first = b"" if self.whole is not None else await anext(self._pieces, b"")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield a stream's pieces as they arrive; raises EngineLostError when it breaks off."""
        yield self._first
        try:
            async for piece in self._pieces:
                yield piece
        except (OSError, BrokenAnswerError) as error:
            raise self._engine.lost(error) from None

    def break_off(self) -> None:
        """Break the answer off for its reader."""
        self._connection.close()

    def close(self) -> None:
        """Stop reading and release the engine."""
        self._engine.close_reply(self._connection, self._abort)


class EngineClient:
    """The engine of `spec`: sglang:URL, vllm:URL, or a URL, whose kind is detected.

    An `api_key` replaces those of clients. `limits` bound its answers. Raises MetropolisError on
    any other `spec`.
    """

    def __init__(
        self, spec: str, api_key: str | None = None, limits: AnswerLimits = LIMITS
    ) -> None:
        kind, _, rest = spec.partition(":")
        self._named = kind if kind in KINDS else None
        self.traits = named(self._named)
        """The traits found by the last probe that was answered."""
        self.detects_traits = True
        """Whether probes set `traits`; if not, they only list its models."""
        self._is_probed = False
        """Whether `traits` were probed since the engine was last lost."""
        url = parse_url(rest if self._named else spec)
        if "@" in url.netloc:
            raise MetropolisError(
                f"--engine {bare_url(url)}: leave out user and password; set METROPOLIS_ENGINE_KEY "
                "to the engine's key"
            )
        self._base = url.path.rstrip("/").removesuffix("/v1")
        self.name = bare_url(url._replace(path=self._base))
        """Its name in messages and metrics."""
        self._host = url.netloc
        self._connections = Connections(url, limits)
        self._api_key = api_key
        self._checks = JSONServer("the engine", self.name, api_key)
        self._priorities = Priorities()
        self._rid = f"gateway-{uuid.uuid4().hex[:12]}"
        self._count = 0
        self._aborts: set[asyncio.Task[None]] = set()
        self.log: Callable[[str], None] = lambda _: None
        """Receives one message when aborts are refused."""
        self._is_refusal_logged = False
        self.is_silent = False
        """Whether the last probe timed out."""

    @property
    def is_known(self) -> bool:
        """SGLang or vLLM, which continue a chat's last message and count tokens in every event."""
        return self.traits.kind in (SGLANG, VLLM)

    @property
    def takes_reuse(self) -> bool:
        """Whether it starts from another model's cache when a request tells it to."""
        return self.traits.kind == METROPOLIS

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Payload = b"",
        priority: int | None = None,
    ) -> Reply:
        """Send a client's request and return the reply; raises EngineLostError.

        An ordered request has a `priority`.
        """
        lines = self._lines(method, path, headers, priority)
        key = None if self._api_key is not None else headers.get("Authorization")
        fresh = False
        while True:
            fields = {} if priority is None else self._fields(path, priority)
            parts = encoded(body, fields)
            length = sum(map(len, parts))
            head = "\r\n".join([*lines, f"Content-Length: {length}\r\n\r\n"])
            request = b"".join((head.encode("utf-8", "surrogateescape"), *parts))
            abort = _Abort(fields["rid"], key) if "rid" in fields else None
            connection = None
            try:
                connection = await self._connections.take(fresh=fresh)
                if connection.exchanges == 0:
                    _keep_alive(connection)
                reply = Reply(self, connection, abort)
                await reply.begin(request)
                return reply
            except (OSError, BrokenAnswerError) as error:
                if connection is not None:
                    connection.close()
                is_new = connection is None or connection.exchanges == 1 or connection.headers
                if is_new or isinstance(error, AnswerLimitError):
                    raise self.lost(error) from None
                fresh = True  # the engine may have closed this one while it was idle
            except BaseException:
                if connection is not None:
                    self.close_reply(connection, abort)
                raise

    async def probe(self) -> Probe:
        """Probe the engine; sets `traits` and `is_silent`."""
        self.is_silent = False
        try:
            async with asyncio.timeout(PROBE_S):
                models = (await self._checks.get("v1/models", _Models)).data or []
        except TimeoutError:
            self.is_silent, self._is_probed = True, False
            sentence = f"the engine at {self.name} does not answer within {PROBE_S:g} s"
            return Probe(False, sentence)
        except (UnavailableError, MalformedError) as error:
            self._is_probed = False
            return Probe(False, str(error))
        except LLMError as error:  # it requires a key or lacks the page, but it answers
            return Probe(True, f"{error}; requests are sent to it anyway")
        if models and self.detects_traits and not self._is_probed:
            kind, is_named = self._named or kind_of(models), self._named is not None
            self._is_probed = True
            self.traits = await traits_of(self._checks, kind, models, is_named=is_named)
        traits = f": {self.traits}" if str(self.traits) else ""
        sentence = f"the engine at {self.name} answers{traits}"
        return Probe(True, sentence, frozenset(model.id for model in models))

    async def preemptions(self) -> float | None:
        """Return the number of requests that it has preempted so far; None if unknown."""
        try:
            async with asyncio.timeout(PROBE_S):
                metrics = await self._checks.content("metrics")
            counts = [line for line in metrics.splitlines() if line.startswith(PREEMPTIONS)]
            return sum(float(line.rpartition(b" ")[2]) for line in counts)
        except (TimeoutError, LLMError, ValueError):
            return None

    async def close(self) -> None:
        """Close idle connections; pending aborts have LAST_ABORTS_S to finish."""
        if self._aborts:
            _, late = await asyncio.wait(self._aborts, timeout=LAST_ABORTS_S)
            for abort in late:
                abort.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._connections.close()
        await self._checks.close()

    def lost(self, error: Exception) -> EngineLostError:
        """Convert `error` for clients; reprobe traits, as another engine may answer next."""
        if isinstance(error, AnswerLimitError):
            return EngineLostError(
                f"the answer of the engine at {self.name} {error}", is_final=True
            )
        self._is_probed = False
        return EngineLostError(f"the engine at {self.name} was lost: {error}")

    def close_reply(self, connection: Connection, abort: _Abort | None) -> None:
        """Keep the connection of a complete answer; otherwise close it and abort on SGLang."""
        self._connections.put_back(connection)
        if abort is not None and not connection.is_complete:
            aborting = asyncio.get_running_loop().create_task(self._send_abort(abort))
            self._aborts.add(aborting)
            aborting.add_done_callback(self._aborts.discard)

    def _lines(
        self, method: str, path: str, headers: Mapping[str, str], priority: int | None
    ) -> list[str]:
        """Return the head of the request to send, without the length of its body."""
        lines = [f"{method} {self._base}{path} HTTP/1.1", f"Host: {self._host}"]
        dropped = DROPPED_HEADERS | {name.lower() for name in headers if _is_placement(name)}
        if self._api_key is not None:
            dropped |= CREDENTIALS
            lines.append(f"Authorization: Bearer {self._api_key}")
        lines += [f"{name}: {value}" for name, value in _forwarded(headers.items(), dropped)]
        if priority is not None and self.traits.kind == VLLM and self.traits.takes_priorities:
            lines.append(f"{VLLM_PRIORITY}: {priority}")
        return lines

    def _fields(self, path: str, priority: int) -> dict[str, Any]:
        """Return the fields to add to the client's body for this kind of engine.

        SGLang accepts an id once, and an abort matches every request whose id begins with its id.
        """
        fields: dict[str, Any] = {}
        known = ORDERED.get(path.partition("?")[0], frozenset())
        if self.traits.takes_priorities and "priority" in known:
            fields["priority"] = self._priority(priority)
        if self.traits.kind == SGLANG and "rid" in known:
            self._count += 1
            fields["rid"] = f"{self._rid}-{self._count}-"
        return fields

    def _priority(self, priority: int) -> int:
        if self.traits.kind != SGLANG:
            return priority
        level = self._priorities.level(priority)
        return level if self.traits.is_low_first else LAST - level

    async def _send_abort(self, abort: _Abort) -> None:
        body, purpose = {"rid": abort.rid}, f"aborting {abort.rid}"
        try:
            async with asyncio.timeout(ABORT_S):
                await self._checks.send("abort_request", body, purpose, abort.authorization)
        except RefusedError as error:
            if not self._is_refusal_logged:
                self._is_refusal_logged = True
                self.log(f"{error}; it continues requests whose clients have disconnected")
        except (LLMError, TimeoutError):
            return  # an unreachable engine has nothing to free, or ignores aborts


def _forwarded(
    headers: Iterable[tuple[str, str]], dropped: frozenset[str]
) -> list[tuple[str, str]]:
    """Return `headers` without those in `dropped` and those listed in the Connection header."""
    headers = [*headers]
    named = [value for name, value in headers if name.lower() == "connection"]
    excluded = dropped.union(token.strip().lower() for value in named for token in value.split(","))
    return [(name, value) for name, value in headers if name.lower() not in excluded]


def _is_placement(name: str) -> bool:
    """Whether a header is for this gateway only, such as names of agents and functions."""
    return name.lower().startswith(PREFIX.lower())


def _keep_alive(connection: Connection) -> None:
    connected = connection.socket
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
