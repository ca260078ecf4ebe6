"""One engine: an SGLang, vLLM or other OpenAI-compatible server, asked over HTTP.

Answers are handed on as they come; the connection they came on is kept if it is good.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from metropolis.gateway.asked import with_fields
from metropolis.gateway.priorities import Priorities
from metropolis.llm.backends.connection import BrokenAnswerError, Connection
from metropolis.llm.backends.http import JSONServer, bare_url, parse_url
from metropolis.llm.backends.pool import Connections
from metropolis.llm.base import LLMError, MalformedError, UnavailableError
from metropolis.types import MetropolisError

KINDS = ("sglang", "vllm", "compatible")
OF_CONNECTION = frozenset(
    (
        "connection", "content-length", "host", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers that are not handed on."""
OF_BODY = OF_CONNECTION | {"accept-encoding", "content-encoding", "expect"}
"""Nor are these of a request, whose body has come and been unpacked."""
CAPACITY_TOKENS = 400_000
"""KV cache of an engine of which nothing is said: 8 billion parameters on 80 GB."""
TOKENS_PER_S = 30.0
"""How fast an answer grows there in a full batch."""
PROBE_S = 5.0
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A machine that has vanished without a word is found out after 35 s."""


class EngineLostError(UnavailableError):
    """The engine cannot be reached, or broke off its answer."""


class _Model(msgspec.Struct):
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] | None = None


class Reply:
    """An engine's answer; of a stream's, the first piece has come, of others the whole."""

    def __init__(self, engine: Engine, connection: Connection, rid: str | None) -> None:
        self._engine, self._connection, self._rid = engine, connection, rid
        self.status = 0
        self.headers: dict[str, str] = {}
        self.whole: bytes | None = None
        """None: it is a stream."""

    async def begin(self, request: bytes) -> None:
        """Send `request` and read on up to the answer's first piece; raises OSError and others."""
        self._connection.send(request)
        self.status = await self._connection.status()
        self.headers = {
            name.decode("latin-1"): value
            for name, value in self._connection.headers.items()
            if name.decode("latin-1") not in OF_CONNECTION
        }
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
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
        self._engine.close_reply(self._connection, self._rid)


class Engine:
    """The engine that `spec` names: sglang:URL, vllm:URL (it takes priorities), or a bare URL.

    A bare URL is asked whether it is SGLang as soon as it answers. Raises MetropolisError on
    anything else.
    """

    def __init__(self, spec: str) -> None:
        kind, _, rest = spec.partition(":")
        self._kind = kind if kind in KINDS else None
        url = parse_url(rest if self._kind else spec)
        if "@" in url.netloc:
            raise MetropolisError(
                f"--engine {bare_url(url)}: leave out user and password; keys come from clients"
            )
        self._base = url.path.rstrip("/").removesuffix("/v1")
        self.name = bare_url(url._replace(path=self._base))
        """How sentences and metrics call it."""
        self._host = url.netloc
        self._connections = Connections(url)
        self._checks = JSONServer("the engine", self.name)
        self._priorities = Priorities()
        self._rid = f"gateway-{uuid.uuid4().hex[:12]}"
        self._count = 0
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def is_known(self) -> bool:
        """SGLang or vLLM, which continue a chat's last message and count tokens in every event."""
        return self._kind in ("sglang", "vllm")

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, rank: int
    ) -> Reply:
        """The answer to a client's request; raises EngineLostError."""
        fields = self._fields(rank) if body else {}
        content = with_fields(body, fields)
        lines = [f"{method} {self._base}{path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{k}: {v}" for k, v in headers.items() if k.lower() not in OF_BODY]
        head = "\r\n".join([*lines, f"Content-Length: {len(content)}\r\n\r\n"])
        request = head.encode("utf-8", "surrogateescape") + content
        while True:
            connection = None
            try:
                connection = await self._connections.take()
                if connection.exchanges == 0:
                    _keep_alive(connection)
                reply = Reply(self, connection, fields.get("rid"))
                await reply.begin(request)
                return reply
            except (OSError, BrokenAnswerError) as error:
                if connection is not None:
                    connection.close()
                if connection is None or connection.exchanges == 1 or connection.headers:
                    raise self.lost(error) from None
                # an idle connection, which the engine has closed meanwhile: another one may be good
            except BaseException:
                if connection is not None:
                    self.close_reply(connection, fields.get("rid"))
                raise

    async def probe(self) -> tuple[bool, str]:
        """Whether the engine answers, and a sentence about it."""
        sentence, models = f"the engine at {self.name} answers", _Models()
        try:
            async with asyncio.timeout(PROBE_S):
                models = await self._checks.get("v1/models", _Models)
        except TimeoutError:
            return False, f"the engine at {self.name} does not answer within {PROBE_S:g} s"
        except (UnavailableError, MalformedError) as error:
            return False, str(error)
        except LLMError as error:  # it wants a key, or has no such page, and yet it answers
            sentence = f"{error}; requests go there all the same"
        if self._kind is None and models.data:
            is_sglang = any(model.owned_by == "sglang" for model in models.data)
            self._kind = "sglang" if is_sglang else "compatible"
        return True, sentence

    async def close(self) -> None:
        """Wait for aborts on their way and close idle connections."""
        await asyncio.gather(*self._aborts)
        self._connections.close()
        await self._checks.close()

    def lost(self, error: Exception) -> EngineLostError:
        """What `error` means to clients."""
        return EngineLostError(f"the engine at {self.name} was lost: {error}")

    def close_reply(self, connection: Connection, rid: str | None) -> None:
        """Keep the connection of an answer that is whole; end what is not, and tell SGLang."""
        self._connections.put_back(connection)
        if rid is not None and not connection.is_complete:
            abort = asyncio.get_running_loop().create_task(self._abort(rid))
            self._aborts.add(abort)
            abort.add_done_callback(self._aborts.discard)

    def _fields(self, rank: int) -> dict[str, Any]:
        """What this kind of engine is told beside the client's body.

        SGLang aborts every request whose id begins with the one it is told: none begins another.
        """
        if self._kind == "vllm":
            return {"priority": rank}
        if self._kind == "sglang":
            self._count += 1
            return {
                "priority": self._priorities.priority(rank),
                "rid": f"{self._rid}-{self._count}-",
            }
        return {}

    async def _abort(self, rid: str) -> None:
        with suppress(LLMError):  # an engine that cannot be told has nothing left to free
            await self._checks.send("abort_request", {"rid": rid}, f"aborting {rid}")


def _keep_alive(connection: Connection) -> None:
    connected = connection.socket
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
