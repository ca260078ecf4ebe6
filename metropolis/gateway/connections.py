"""The connections of clients: a bound on their number, on the bytes of bodies, on slowness.

1. A connection waits for a request, sends one, or has one that is being answered (held).
2. When there are too many, the one is dropped that has waited or sent for longest, those first that
   have not had an answer yet; held ones never. If all are held, the new one is refused.
3. When bodies take too much memory, the one is dropped that has been sending for longest.
4. Of what a client sent nothing is repeated in answers or logs: malformed headers may hold keys.
5. A connection counts from its acceptance on, before its TLS handshake.
6. The kernel ends a connection whose client takes no byte of an answer for a time; without that,
   clients that do not read hold their connections for ever.
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
"""Of a request's first line, and of each header."""
HEADERS_MAX = 128
READ_BYTES = 64 << 10
"""Parsed without a pause: as chunks of one byte they take 15 ms."""
TLS_RECORD_BYTES = 16 << 10
"""The most that one record holds. asyncio reserves 256 KiB for each connection."""
LINGERING_S = 5.0
"""How long the rest of a refused body is read, so that its client sees why."""


class Connections:
    """All of one server, by what they do."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self.limits, self.refusals = limits, refusals
        self.open: set[ClientConnection] = set()
        self._new: dict[ClientConnection, float] = {}
        """Wait and have not had an answer; since when, the longest first."""
        self._idle: dict[ClientConnection, float] = {}
        """Wait and have had one."""
        self._sending: dict[ClientConnection, float] = {}
        self._body_bytes = 0

    def add(self, connection: ClientConnection) -> bool:
        """Whether there is room for one more; it waits."""
        if len(self.open) >= self.limits.connections and not self._drop_one():
            sentence = f"{len(self.open)} connections have requests: a new one is refused"
            self.refusals.add("connections", sentence)
            return False
        self.open.add(connection)
        self.waits(connection)
        return True

    def remove(self, connection: ClientConnection) -> None:
        """It has ended."""
        self.open.discard(connection)
        self._place(connection, None)
        self._release(connection)

    def waits(self, connection: ClientConnection) -> None:
        """For a request."""
        self._release(connection)
        if connection in self.open:
            self._place(connection, self._idle if connection.has_been_answered else self._new)

    def sends(self, connection: ClientConnection) -> None:
        """The head of its request has come, and the body has not."""
        if connection in self.open:
            self._place(connection, self._sending)

    def holds(self, connection: ClientConnection) -> None:
        """Its request has come whole."""
        self._place(connection, None)

    def is_waiting(self, connection: ClientConnection) -> bool:
        """And no head of a request has come."""
        return connection.place is self._new or connection.place is self._idle

    def has_room(self, connection: ClientConnection, body_bytes: int) -> bool:
        """Whether there is memory for so many more bytes of its body, which then are taken."""
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

    def _place(
        self, connection: ClientConnection, place: dict[ClientConnection, float] | None
    ) -> None:
        if connection.place is not None:
            del connection.place[connection]
        connection.place = place
        if place is not None:
            place[connection] = time.monotonic()

    def _release(self, connection: ClientConnection) -> None:
        self._body_bytes -= connection.body_bytes
        connection.body_bytes = 0


class ClientConnection(web.RequestHandler):
    """One connection."""

    __slots__ = (
        "_accepted",
        "_connections",
        "_head_timer",
        "body_bytes",
        "has_been_answered",
        "place",
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
        """Of the request that is being received or answered."""
        self.has_been_answered = False
        """By an engine, and with 200."""
        self.place: dict[ClientConnection, float] | None = None
        """Kept by `Connections`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is accepted, or its TLS handshake is over; refuse it if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        if self._accepted is not None or self.accept(transport):
            super().connection_made(transport)
        else:
            self.force_close()
            transport.write(_written(503, "too many connections; try again later", RETRY_AFTER))
            transport.close()

    def accept(self, transport: asyncio.Transport) -> bool:
        """Count it, if there is room; `transport` is the TCP connection."""
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        stall_ms = int(1000 * self._connections.limits.stall_s)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        self._accepted = transport
        return self._connections.add(self)

    def forget(self) -> None:
        """It has ended, perhaps in its handshake."""
        self._stop_timer()
        self._connections.remove(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self.forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A request's head has a limited time from its first byte on."""
        if data and self._head_timer is None and self._connections.is_waiting(self):
            header_s = self._connections.limits.header_s
            self._head_timer = asyncio.get_running_loop().call_later(header_s, self._too_slow)
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 -- whatever a parser may raise of hostile bytes
            self._connections.refusals.add("malformed", _malformed(error))
            self.abort()

    def head_received(self, request: web.BaseRequest) -> None:
        """The server begins with `request`; raises ConnectionError if it is of another protocol,
        in which no answer could be written."""
        self._stop_timer()
        if request.version not in VERSIONS:
            self._connections.refusals.add("malformed", "a request is not of HTTP/1.0 or HTTP/1.1")
            self.abort()
            raise ConnectionError
        if request.body_exists:
            self._connections.sends(self)
        else:
            self._connections.holds(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Errors that no handler has seen are written as OpenAI does; then it waits again."""
        self._stop_timer()
        if isinstance(resp, web.HTTPException):
            resp = error_response(resp.status, resp.reason)
        finished = await super().finish_response(request, resp, start_time)
        self._connections.waits(self)
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 -- repeats what the client sent
    ) -> web.StreamResponse:
        """The answer to a malformed request; raises ConnectionError when its client has left."""
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, http_exceptions.HttpProcessingError):
            status, sentence = 400, _malformed(exc)
            self._connections.refusals.add("malformed", sentence)
        else:
            sentence = "the gateway failed; its log says why"
            told = "".join(traceback.format_exception(exc))
            self.logger.error(
                "a request failed: %s", redacted(told, request.headers, request.query_string)
            )
        if request.writer.output_size > 0:
            raise ConnectionError
        response = error_response(status, sentence)
        response.force_close()
        return response

    def log_exception(self, *args: object, **options: object) -> None:
        """What is wrong with the rest of a body that is not read any more is malformed, too."""
        error = options.get("exc_info")
        if isinstance(error, web.RequestPayloadError):
            self._connections.refusals.add("malformed", _malformed(error))
        else:
            super().log_exception(*args, **options)

    def abort(self) -> None:
        """Drop it."""
        self.force_close()
        if self._accepted is not None:
            self._accepted.abort()

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._connections.is_waiting(self) and self.transport is not None:
            sentence = f"no whole head of a request within {self._connections.limits.header_s:g} s"
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
            None,  # type: ignore[arg-type]  # no one waits for the handshake
            server_side=True,
            ssl_handshake_timeout=handshake_s,  # type: ignore[arg-type]  # a float is right, too
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
        """asyncio tells the connection only if its handshake is over."""
        self._connection.forget()
        super().connection_lost(exc)


def error_response(
    status: int, sentence: str, headers: dict[str, str] | None = None, code: str | None = None
) -> web.Response:
    """An error of ours, as OpenAI writes them."""
    body = error_body(status, sentence, code)
    return web.json_response(body, status=status, headers=headers)


def _written(status: int, sentence: str, headers: dict[str, str] | None = None) -> bytes:
    """The same, where there is no request to answer."""
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
    """Without what the client sent, which the messages of aiohttp repeat."""
    if isinstance(error, http_exceptions.LineTooLong):
        return f"the request has a line of more than {LINE_BYTES_MAX} bytes"
    return f"the request is not well-formed HTTP/1.1 or has more than {HEADERS_MAX} headers"
