"""Client connections: bounds on their number, on the bytes of bodies, and on slow clients.

1. A connection waits for a request, sends one, or has a complete one that is being answered.
2. When there are too many connections, the one that has waited or sent for longest is dropped,
   those without an answer so far first, one with a complete request never. If all have complete
   requests, the new one is refused.
3. When bodies take too much memory, the connection that has been sending for longest is dropped.
4. Answers and logs never repeat what a client sent: malformed headers may contain keys.
5. A connection counts from its acceptance on, before its TLS handshake.
6. The kernel ends a connection whose client acknowledges no data of an answer for a time;
   otherwise clients that do not read would hold their connections forever.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
import traceback
from asyncio.sslproto import SSLProtocol

from aiohttp import HttpVersion10, HttpVersion11, http_exceptions, web

from metropolis.gateway.access import redacted
from metropolis.gateway.limits import Limits
from metropolis.gateway.refusals import Refusals
from metropolis.gateway.response_builder import error_body

VERSIONS = (HttpVersion10, HttpVersion11)
RETRY_AFTER = {"Retry-After": "1"}
LINE_BYTES_MAX = 8190
"""Limit of a request's first line and of each header."""
HEADERS_MAX = 128
READ_BYTES = 64 << 10
"""Maximum parsed at once: 15 ms if the chunks have one byte each."""
TLS_RECORD_BYTES = 16 << 10
"""Maximum size of a TLS record. asyncio by default reserves 256 KiB for each connection."""
LINGERING_S = 5.0
"""How long the rest of a refused body is read, so that the client receives the error."""


class Connections:
    """All connections of a server, by state."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self.limits, self.refusals = limits, refusals
        self.open: set[ClientConnection] = set()
        self._new: dict[ClientConnection, float] = {}
        """Waiting connections without an answer yet, with their start times, oldest first."""
        self._idle: dict[ClientConnection, float] = {}
        """Waiting connections that had an answer."""
        self._sending: dict[ClientConnection, float] = {}
        self._complete: dict[ClientConnection, float] = {}
        """Connections with a complete request, until its answer is written."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._body_bytes = 0

    @property
    def unanswered(self) -> int:
        """Number of completely received requests without a complete answer."""
        return len(self._complete)

    async def answered(self) -> None:
        """Wait until no request is unanswered."""
        await self._all_answered.wait()

    def add(self, connection: ClientConnection) -> bool:
        """Add a waiting connection; return False if there is no room."""
        if len(self.open) >= self.limits.connections and not self._drop_one():
            sentence = f"{len(self.open)} connections have requests: a new one is refused"
            self.refusals.add("connections", sentence)
            return False
        self.open.add(connection)
        self.mark_waiting(connection)
        return True

    def remove(self, connection: ClientConnection) -> None:
        """Remove an ended connection."""
        self.open.discard(connection)
        self._move_to(connection, None)
        self._release(connection)

    def mark_waiting(self, connection: ClientConnection) -> None:
        """Record that the connection waits for a request."""
        self._release(connection)
        if connection in self.open:
            self._move_to(connection, self._idle if connection.has_been_answered else self._new)

    def mark_sending(self, connection: ClientConnection) -> None:
        """Record that the head of a request has arrived and its body has not."""
        if connection in self.open:
            self._move_to(connection, self._sending)

    def mark_complete(self, connection: ClientConnection) -> None:
        """Record that a request has arrived completely."""
        if connection in self.open:
            self._move_to(connection, self._complete)

    def is_waiting(self, connection: ClientConnection) -> bool:
        """Whether the connection waits for the head of a request."""
        return connection.group is self._new or connection.group is self._idle

    def has_room(self, connection: ClientConnection, body_bytes: int) -> bool:
        """Reserve memory for `body_bytes` more of its body; return False if there is none."""
        while self._body_bytes + body_bytes > self.limits.bodies_bytes:
            slowest = next(
                (c for c in self._sending if c.body_bytes or c is connection), connection
            )
            if slowest is connection:
                return False
            self._drop(slowest, "bodies", "too many bytes of bodies: a slow sender is dropped")
        self._body_bytes += body_bytes
        connection.body_bytes += body_bytes
        return True

    def _drop_one(self) -> bool:
        oldest = [next(iter(place.items())) for place in (self._new, self._sending) if place]
        if oldest:
            connection = min(oldest, key=lambda item: item[1])[0]
        elif self._idle:
            connection = next(iter(self._idle))
        else:
            return False
        sentence = (
            f"more than {self.limits.connections} connections: an idle or slow one is dropped"
        )
        self._drop(connection, "connections", sentence)
        return True

    def _drop(self, connection: ClientConnection, reason: str, sentence: str) -> None:
        self.refusals.add(reason, sentence)
        self.remove(connection)
        connection.abort()

    def _move_to(
        self, connection: ClientConnection, group: dict[ClientConnection, float] | None
    ) -> None:
        if connection.group is not None:
            del connection.group[connection]
        connection.group = group
        if group is not None:
            group[connection] = time.monotonic()
        if self._complete:
            self._all_answered.clear()
        else:
            self._all_answered.set()

    def _release(self, connection: ClientConnection) -> None:
        self._body_bytes -= connection.body_bytes
        connection.body_bytes = 0


class ClientConnection(web.RequestHandler):
    """The connection of one client."""

    __slots__ = (
        "_accepted",
        "_connections",
        "_head_timer",
        "body_bytes",
        "group",
        "has_been_answered",
    )

    def __init__(self, server: web.Server, connections: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=connections.limits.idle_s,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
            lingering_time=LINGERING_S,
            auto_decompress=False,
        )
        self._connections = connections
        self._accepted: asyncio.Transport | None = None
        """The TCP connection."""
        self._head_timer: asyncio.TimerHandle | None = None
        self.body_bytes = 0
        """Size of the body that is being received or answered."""
        self.has_been_answered = False
        """Whether an engine answered one of its requests with 200."""
        self.group: dict[ClientConnection, float] | None = None
        """The group of connections that has it; set by `Connections`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called on acceptance or after the TLS handshake; refuse it if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        if self._accepted is not None or self.accept(transport):
            super().connection_made(transport)
        else:
            self.force_close()
            transport.write(_written(503, "too many connections; try again later", RETRY_AFTER))
            transport.close()

    def accept(self, transport: asyncio.Transport) -> bool:
        """Count the connection if there is room; `transport` is the TCP connection."""
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        stall_ms = int(1000 * self._connections.limits.stall_s)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        self._accepted = transport
        return self._connections.add(self)

    def forget(self) -> None:
        """Stop counting an ended connection, including one that ended in its handshake."""
        self._stop_timer()
        self._connections.remove(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self.forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Start the time limit of a request's head at its first byte."""
        if data and self._head_timer is None and self._connections.is_waiting(self):
            header_s = self._connections.limits.header_s
            self._head_timer = asyncio.get_running_loop().call_later(header_s, self._too_slow)
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 -- parsers may raise anything on hostile bytes
            self._connections.refusals.add("malformed", _malformed(error))
            self.abort()

    def head_received(self, request: web.BaseRequest) -> None:
        """Called when the server starts on `request`; raises ConnectionError on another protocol,
        in which no answer can be written."""
        self._stop_timer()
        if request.version not in VERSIONS:
            self._connections.refusals.add("malformed", "a request is not of HTTP/1.0 or HTTP/1.1")
            self.abort()
            raise ConnectionError
        if request.body_exists:
            self._connections.mark_sending(self)
        else:
            self._connections.mark_complete(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Convert errors raised outside handlers to OpenAI's format, then wait for a request."""
        self._stop_timer()
        if isinstance(resp, web.HTTPException):
            resp = error_response(resp.status, resp.reason)
        finished = await super().finish_response(request, resp, start_time)
        if isinstance(resp, web.Response):
            resp.body = None  # aiohttp keeps the answer until the next one
        self._connections.mark_waiting(self)
        await asyncio.sleep(0)  # as of Python 3.12 aiohttp would answer all that was read at once
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 -- repeats what the client sent
    ) -> web.StreamResponse:
        """Answer a malformed request; raises ConnectionError when its client disconnected."""
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, http_exceptions.HttpProcessingError):
            status, sentence = 400, _malformed(exc)
            self._connections.refusals.add("malformed", sentence)
        else:
            sentence = "the gateway failed; see its log"
            trace = "".join(traceback.format_exception(exc))
            self.logger.error(
                "a request failed: %s", redacted(trace, request.headers, request.query_string)
            )
        if request.writer.output_size > 0:
            raise ConnectionError
        response = error_response(status, sentence)
        response.force_close()
        return response

    def log_exception(self, *args: object, **options: object) -> None:
        """Count an error in the unread rest of a body as malformed."""
        error = options.get("exc_info")
        if isinstance(error, web.RequestPayloadError):
            self._connections.refusals.add("malformed", _malformed(error))
        else:
            super().log_exception(*args, **options)

    def abort(self) -> None:
        """Drop the connection."""
        self.force_close()
        if self._accepted is not None:
            self._accepted.abort()

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._connections.is_waiting(self) and self.transport is not None:
            sentence = (
                f"the head of a request is incomplete after {self._connections.limits.header_s:g} s"
            )
            self._connections.refusals.add("slow", sentence)
            self.transport.write(_written(408, sentence))
            self.force_close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class TLSConnection(SSLProtocol):
    """The TLS side of one connection."""

    max_size = TLS_RECORD_BYTES

    def __init__(
        self, connection: ClientConnection, tls: ssl.SSLContext, handshake_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            loop,
            connection,
            tls,
            None,  # type: ignore[arg-type]  # no waiter for the handshake
            server_side=True,
            ssl_handshake_timeout=handshake_s,  # type: ignore[arg-type]  # a float is valid, too
        )
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse it if there are too many: no answer can be written before the handshake."""
        assert isinstance(transport, asyncio.Transport)
        if self._connection.accept(transport):
            super().connection_made(transport)
        else:
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio notifies the connection only if its handshake is complete."""
        self._connection.forget()
        super().connection_lost(exc)


def error_response(
    status: int, sentence: str, headers: dict[str, str] | None = None, code: str | None = None
) -> web.Response:
    """Return an error response in OpenAI's format."""
    body = error_body(status, sentence, code)
    return web.json_response(body, status=status, headers=headers)


def _written(status: int, sentence: str, headers: dict[str, str] | None = None) -> bytes:
    """Return an error response as bytes, for connections without a request."""
    content = json.dumps(error_body(status, sentence)).encode()
    fields = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(content)),
        "Connection": "close",
        **(headers or {}),
    }
    head = [f"HTTP/1.1 {status} {web.Response(status=status).reason}"]
    head += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*head, "", ""]).encode() + content


def _malformed(error: BaseException) -> str:
    """Describe `error` without the client's data, which aiohttp's messages repeat."""
    if isinstance(error, http_exceptions.LineTooLong):
        return f"the request has a line of more than {LINE_BYTES_MAX} bytes"
    return f"the request is not well-formed HTTP/1.1 or has more than {HEADERS_MAX} headers"
