"""One engine: an SGLang, vLLM or other OpenAI-compatible server, asked over HTTP.

Answers are handed on as they come; the connection they came on is kept if it is good.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from metropolis.gateway.access import CREDENTIALS
from metropolis.gateway.priority_quantizer import PRIORITIES, Priorities
from metropolis.gateway.probing import KINDS, SGLANG, VLLM, Model, kind_of, named, traits_of
from metropolis.gateway.request_parsing import parts_with_fields
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

OF_CONNECTION = frozenset(
    (
        "connection", "content-length", "host", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers that are not handed on."""
VLLM_PRIORITY = "X-Vllm-Priority"
"""vLLM believes it before the body."""
OF_REQUEST = OF_CONNECTION | {
    "accept-encoding", "content-encoding", "expect", VLLM_PRIORITY.lower(),
}  # fmt: skip
"""Nor are these of a request: its body has come and been unpacked, its priority is the policy's."""
CAPACITY_TOKENS = 400_000
"""KV cache of an engine of which nothing is said: 8 billion parameters on 80 GB."""
TOKENS_PER_S = 30.0
"""How fast an answer grows there in a full batch."""
PROBE_S = 5.0
LAST_ABORTS_S = 1.0
"""Less when the gateway ends."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A machine that has vanished without a word is found out after 35 s."""


LIMITS = AnswerLimits(body_bytes=256 << 20, time_s=3600.0)
"""Of an engine's answer; embeddings of a batch take the most bytes."""


class EngineLostError(UnavailableError):
    """The engine cannot be reached, or broke off its answer.

    `is_final`: the answer was beyond the limits, and another engine's would be, too.
    """

    def __init__(self, sentence: str, *, is_final: bool = False) -> None:
        super().__init__(sentence)
        self.is_final = is_final


PREEMPTIONS = (b"sglang:num_retracted_requests_total", b"vllm:num_preemptions_total")
"""Metrics that count requests which the engine has put back for want of memory."""


class _Models(msgspec.Struct):
    data: list[Model] | None = None


class _Abort(NamedTuple):
    """How SGLang is told that nobody waits any more."""

    rid: str
    authorization: str | None
    """The client's."""


class Reply:
    """An engine's answer; of a stream's, the first piece has come, of others the whole."""

    def __init__(self, engine: EngineClient, connection: Connection, abort: _Abort | None) -> None:
        self._engine, self._connection, self._abort = engine, connection, abort
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.whole: bytes | None = None
        """None: it is a stream."""

    async def begin(self, request: bytes) -> None:
        """Send `request` and read on up to the answer's first piece; raises OSError and others."""
        self._connection.send(request)
        self.status = await self._connection.status()
        fields = [(name.decode("latin-1"), value) for name, value in self._connection.fields]
        self.headers = _handed_on(fields, OF_CONNECTION)
        kind = self._connection.headers.get(b"content-type", "")
        if not kind.startswith("text/event-stream"):
            self.whole = await self._connection.content()
        self._pieces = self._connection.chunks()
        self._first = b"" if self.whole is not None else await anext(self._pieces, b"")

    async def pieces(self) -> AsyncIterator[bytes]:
        """A stream's pieces as they come; raises EngineLostError when it is broken off."""
        yield self._first
        try:
            async for piece in self._pieces:
                yield piece
        except (OSError, BrokenAnswerError) as error:
            raise self._engine.lost(error) from None

    def break_off(self) -> None:
        """Let whoever reads find it broken off."""
        self._connection.close()

    def close(self) -> None:
        """Nobody reads on; the engine need not either."""
        self._engine.close_reply(self._connection, self._abort)


class EngineClient:
    """The engine that `spec` names: sglang:URL, vllm:URL, or a URL, whose kind is found out.

    With an `api_key` it gets that instead of its clients'. Its answers stay within `limits`. Raises
    MetropolisError on anything else.
    """

    def __init__(
        self, spec: str, api_key: str | None = None, limits: AnswerLimits = LIMITS
    ) -> None:
        kind, _, rest = spec.partition(":")
        self._named = kind if kind in KINDS else None
        self.traits = named(self._named)
        """As it said when it answered last."""
        self._has_said = False
        """Whether it has, since it was lost."""
        self.models: frozenset[str] = frozenset()
        """Names of those that it serves; empty: it does not say."""
        url = parse_url(rest if self._named else spec)
        if "@" in url.netloc:
            raise MetropolisError(
                f"--engine {bare_url(url)}: leave out user and password; set METROPOLIS_ENGINE_KEY "
                "to the engine's key"
            )
        self._base = url.path.rstrip("/").removesuffix("/v1")
        self.name = bare_url(url._replace(path=self._base))
        """How sentences and metrics call it."""
        self._host = url.netloc
        self._connections = Connections(url, limits)
        self._api_key = api_key
        self._checks = JSONServer("the engine", self.name, api_key)
        self._priorities = Priorities()
        self._rid = f"gateway-{uuid.uuid4().hex[:12]}"
        self._count = 0
        self._aborts: set[asyncio.Task[None]] = set()
        self.said: Callable[[str], None] = lambda _: None
        """Is told, once, when aborts are refused."""
        self._is_refusal_told = False
        self.is_silent = False
        """Whether it let the time for a look pass, when it was looked at last."""

    @property
    def is_known(self) -> bool:
        """SGLang or vLLM, which continue a chat's last message and count tokens in every event."""
        return self.traits.kind in (SGLANG, VLLM)

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        rank: int | None = None,
    ) -> Reply:
        """The answer to a client's request, of that `rank` if it is ordered; raises
        EngineLostError."""
        lines = [f"{method} {self._base}{path} HTTP/1.1", f"Host: {self._host}"]
        kept_back = OF_REQUEST | {name.lower() for name in headers if _is_placement(name)}
        if self._api_key is not None:
            kept_back |= CREDENTIALS
            lines.append(f"Authorization: Bearer {self._api_key}")
        lines += [f"{name}: {value}" for name, value in _handed_on(headers.items(), kept_back)]
        if rank is not None and self.traits.kind == VLLM and self.traits.takes_priorities:
            lines.append(f"{VLLM_PRIORITY}: {rank}")
        while True:
            fields = {} if rank is None else self._fields(path, rank)
            parts = parts_with_fields(body, fields)
            length = sum(map(len, parts))
            head = "\r\n".join([*lines, f"Content-Length: {length}\r\n\r\n"])
            request = b"".join((head.encode("utf-8", "surrogateescape"), *parts))
            key = None if self._api_key is not None else headers.get("Authorization")
            abort = _Abort(fields["rid"], key) if "rid" in fields else None
            connection = None
            try:
                connection = await self._connections.take()
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
                # an idle connection, which the engine has closed meanwhile: another one may be good
            except BaseException:
                if connection is not None:
                    self.close_reply(connection, abort)
                raise

    async def probe(self) -> tuple[bool, str]:
        """Whether the engine answers, and a sentence about it; see also `is_silent`."""
        self.is_silent = False
        try:
            async with asyncio.timeout(PROBE_S):
                models = (await self._checks.get("v1/models", _Models)).data or []
        except TimeoutError:
            self.is_silent, self._has_said = True, False
            return False, f"the engine at {self.name} does not answer within {PROBE_S:g} s"
        except (UnavailableError, MalformedError) as error:
            self._has_said = False
            return False, str(error)
        except LLMError as error:  # it wants a key, or has no such page, and yet it answers
            return True, f"{error}; requests go there all the same"
        self.models = frozenset(model.id for model in models)
        if models and not self._has_said:
            kind, is_named = self._named or kind_of(models), self._named is not None
            self._has_said = True
            self.traits = await traits_of(self._checks, kind, models[0].id, is_named=is_named)
        said = f": {self.traits}" if str(self.traits) else ""
        return True, f"the engine at {self.name} answers{said}"

    async def preemptions(self) -> float | None:
        """How many requests it has put back so far; None if it does not tell."""
        try:
            async with asyncio.timeout(PROBE_S):
                metrics = await self._checks.content("metrics")
            counts = [line for line in metrics.splitlines() if line.startswith(PREEMPTIONS)]
            return sum(float(line.rpartition(b" ")[2]) for line in counts)
        except (TimeoutError, LLMError, ValueError):
            return None

    async def close(self) -> None:
        """Close idle connections; aborts on their way have LAST_ABORTS_S."""
        if self._aborts:
            _, late = await asyncio.wait(self._aborts, timeout=LAST_ABORTS_S)
            for abort in late:
                abort.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._connections.close()
        await self._checks.close()

    def lost(self, error: Exception) -> EngineLostError:
        """What `error` means to clients; who answers next may be another engine."""
        if isinstance(error, AnswerLimitError):
            return EngineLostError(
                f"the answer of the engine at {self.name} {error}", is_final=True
            )
        self._has_said = False
        return EngineLostError(f"the engine at {self.name} was lost: {error}")

    def close_reply(self, connection: Connection, abort: _Abort | None) -> None:
        """Keep the connection of an answer that is whole; end what is not, and tell SGLang."""
        self._connections.put_back(connection)
        if abort is not None and not connection.is_complete:
            telling = asyncio.get_running_loop().create_task(self._tell(abort))
            self._aborts.add(telling)
            telling.add_done_callback(self._aborts.discard)

    def _fields(self, path: str, rank: int) -> dict[str, Any]:
        """What this kind of engine is told beside the client's body, every time it is sent.

        SGLang takes an id once, and aborts every request whose id begins with the one it is told.
        """
        fields: dict[str, Any] = {}
        known = ORDERED.get(path.partition("?")[0], frozenset())
        if self.traits.takes_priorities and "priority" in known:
            fields["priority"] = self._priority(rank)
        if self.traits.kind == SGLANG and "rid" in known:
            self._count += 1
            fields["rid"] = f"{self._rid}-{self._count}-"
        return fields

    def _priority(self, rank: int) -> int:
        if self.traits.kind == VLLM:
            return rank
        level = self._priorities.priority(rank)
        return level if self.traits.is_low_first else PRIORITIES - 1 - level

    async def _tell(self, abort: _Abort) -> None:
        body, asked = {"rid": abort.rid}, f"aborting {abort.rid}"
        try:
            async with asyncio.timeout(ABORT_S):
                await self._checks.send("abort_request", body, asked, abort.authorization)
        except RefusedError as error:
            if not self._is_refusal_told:
                self._is_refusal_told = True
                self.said(f"{error}; it goes on with requests whose clients have left")
        except (LLMError, TimeoutError):
            return  # an engine that cannot be told has nothing left to free, or will not listen


def _handed_on(
    headers: Iterable[tuple[str, str]], kept_back: frozenset[str]
) -> list[tuple[str, str]]:
    """What is not of this connection only: `kept_back`, and what the header Connection names."""
    headers = [*headers]
    named = [value for name, value in headers if name.lower() == "connection"]
    but = kept_back.union(token.strip().lower() for value in named for token in value.split(","))
    return [(name, value) for name, value in headers if name.lower() not in but]


def _is_placement(name: str) -> bool:
    """Meant for this gateway: names of agents and functions do not concern engines."""
    return name.lower().startswith(PREFIX.lower())


def _keep_alive(connection: Connection) -> None:
    connected = connection.socket
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
