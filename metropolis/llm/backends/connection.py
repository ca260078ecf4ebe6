"""One HTTP/1.1 connection to a server, with as little work per call as it takes.

Of what a run costs beside its model nearly all is HTTP, so answers are parsed by httptools (C),
straight from the socket. No redirects, proxies, cookies, compression: servers of models need none.

1. One request has one answer. Interim answers (1xx) are skipped. A connection on which anything
   else comes, behind the answer or between exchanges, is closed and never used again.
2. An answer stays within its `AnswerLimits`, in bytes and in time, or is broken off.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from math import inf

import httptools

Address = tuple[str, int] | tuple[str, int, int, int]
"""Of a host by its number, in IPv4 or IPv6."""
OK = 200
AHEAD_BYTES = 64 << 10
"""A server may be ahead by about so much of whoever takes its answer in pieces."""


class BrokenAnswerError(Exception):
    """The connection ended within an answer, or what came is no HTTP."""


class AnswerLimitError(BrokenAnswerError):
    """The answer goes beyond its limits; the message continues a sentence about it."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The largest and longest answer that is read."""

    head_bytes: int = 64 << 10
    """Of status line and headers, interim answers included; also of whatever else stands between
    two pieces of the body, such as the sizes of chunks."""
    body_bytes: int = 64 << 20
    """Of a body that is read whole."""
    event_bytes: int = 4 << 20
    """Of one event of a stream; streams as a whole are limited by their text and by time."""
    time_s: float = inf
    """From the request to the end of its answer."""


LIMITS = AnswerLimits()


class Connection(asyncio.Protocol):
    """Carries one exchange after another; open one with `connect`.

    `reusable` tells whether another exchange may begin: the last one is complete, and the server
    has neither closed the connection nor said that it will, nor sent what was not asked for.
    """

    def __init__(self, limits: AnswerLimits = LIMITS) -> None:
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._lost: Exception | None = None
        self._status = self._head_bytes = self._loose_bytes = 0
        """The last: received since the last piece of the body."""
        self._headed = self._framed = self._complete = self._keep = self._in_pieces = False
        self._body = bytearray()
        self.exchanges = 0
        """Begun on this connection."""
        self.headers: dict[bytes, str] = {}
        """Of the answer; names in lower case."""
        self.fields: list[tuple[bytes, str]] = []
        """The same, all those of one name."""
        self._reset()

    @property
    def reusable(self) -> bool:
        """Whether another exchange may begin."""
        return self._complete and self._keep and self._lost is None and not self._has_unread()

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer has come."""
        return self._complete

    @property
    def socket(self) -> socket.socket:
        """What it runs on, for its options."""
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    @property
    def address(self) -> Address:
        """Where it leads to."""
        assert self._transport is not None
        address: Address = self._transport.get_extra_info("peername")
        return address

    def send(self, request: bytes) -> None:
        """Begin an exchange."""
        assert self._transport is not None
        self._reset()
        self.exchanges += 1
        if self._limits.time_s < inf:
            late = AnswerLimitError(f"took longer than {self._limits.time_s:g} s")
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._limits.time_s, self._break_off, late)
        self._transport.write(request)

    async def status(self) -> int:
        """The answer's status, when its headers have come; `headers` has them then."""
        while not self._headed:
            await self._change()
        return self._status

    async def content(self) -> bytes:
        """The whole answer."""
        while not self._complete:
            await self._change()
        return bytes(self._body)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer's pieces as they come; while they are not taken, no more are read."""
        assert self._transport is not None
        self._in_pieces = True
        while True:
            if self._body:
                piece, self._body = bytes(self._body), bytearray()
                yield piece
            elif self._complete:
                return
            else:
                self._transport.resume_reading()
                await self._change()

    def close(self) -> None:
        """End the connection, whatever is going on in it: what has come of an answer is cut off."""
        self._break_off(BrokenAnswerError("it was ended here"))

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._complete or not self.exchanges:
            self._refuse_unasked()
            return
        self._loose_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break_off(BrokenAnswerError(f"no HTTP: {error}"))
        self._check_head(self._loose_bytes)
        assert self._transport is not None
        if self._in_pieces and not self._complete and len(self._body) > AHEAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        ends_with_connection = self._headed and not self._framed
        if exc is None and ends_with_connection and self._lost is None:
            self._complete = True
        if self._lost is None:
            closed = ConnectionError("the connection was closed")
            self._lost = BrokenAnswerError("it broke off") if self._headed else exc or closed
        self._cancel_deadline()
        self._wake()

    # --- what httptools calls

    def on_message_begin(self) -> None:
        """An answer begins: the first of the exchange, one behind an interim one, or one more."""
        if self._complete:
            self._refuse_unasked()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or, behind the body, a trailer."""
        if self._headed:
            return
        self._head_bytes += len(name) + len(value)
        name = name.lower()
        self.headers[name] = value.decode("latin-1")
        self.fields.append((name, self.headers[name]))
        self._framed |= name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """The answer itself follows, or another one behind an interim one."""
        if self._headed:
            return
        self._status = self._parser.get_status_code()
        self._check_head(self._head_bytes)
        if self._status < OK:
            self.headers, self.fields, self._framed = {}, [], False
        else:
            self._headed = True

    def on_body(self, chunk: bytes) -> None:
        """A piece of it."""
        if not self._headed or self._complete or self._lost is not None:
            return
        self._loose_bytes = 0
        self._body += chunk
        if len(self._body) > self._limits.body_bytes and not self._in_pieces:
            self._break_off(AnswerLimitError(f"is longer than {self._limits.body_bytes:,} bytes"))

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._headed and not self._complete and self._lost is None:
            self._keep = self._parser.should_keep_alive()
            self._complete = True
            self._cancel_deadline()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers, self.fields = {}, []
        self._body = bytearray()
        self._head_bytes = self._loose_bytes = 0
        self._headed = self._framed = self._complete = self._keep = self._in_pieces = False

    def _check_head(self, came_bytes: int) -> None:
        if came_bytes > self._limits.head_bytes:
            what = "sizes or trailers" if self._headed else "headers"
            sentence = f"has {what} of more than {self._limits.head_bytes:,} bytes"
            self._break_off(AnswerLimitError(sentence))

    def _refuse_unasked(self) -> None:
        """What comes now could be taken for the answer to the next request."""
        self._keep = False
        assert self._transport is not None
        self._transport.abort()

    def _break_off(self, error: Exception) -> None:
        """End the connection; an answer that is not complete ends with `error`."""
        if self._lost is None:
            self._lost = error
        self._cancel_deadline()
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _has_unread(self) -> bool:
        """Whether something lies in the socket: unasked bytes, or the server's closing."""
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def _change(self) -> None:
        """Wait until something has come; raises what has ended the connection."""
        if self._lost is not None:
            raise self._lost
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        if self._lost is not None and not self._complete:
            raise self._lost

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, limits: AnswerLimits = LIMITS
) -> Connection:
    """A connection to the `host` of that name; raises OSError."""
    _, connection = await asyncio.get_running_loop().create_connection(
        partial(Connection, limits), host, port, ssl=tls
    )
    return connection


async def connect_again(
    address: Address, tls: ssl.SSLContext | None, name: str, limits: AnswerLimits = LIMITS
) -> Connection:
    """A connection to the host at `address`, whose certificate must be for `name`; raises OSError.

    On one machine it stands at once, and asyncio's waiting for it would take most of the time.
    """
    loop = asyncio.get_running_loop()
    reached = socket.socket(socket.AF_INET if len(address) == 2 else socket.AF_INET6)
    try:
        reached.setblocking(False)
        if reached.connect_ex(address) and not _is_connected(reached):
            await loop.sock_connect(reached, address)
        _, connection = await loop.create_connection(
            partial(Connection, limits),
            sock=reached,
            ssl=tls,
            server_hostname=name if tls else None,
        )
    except BaseException:
        reached.close()
        raise
    return connection


def _is_connected(reached: socket.socket) -> bool:
    try:
        reached.getpeername()
    except OSError:
        return False
    return True
