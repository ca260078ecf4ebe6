"""One HTTP/1.1 connection to a server, with minimal work per call.

HTTP is nearly all of a run's cost beside the model, so answers are parsed by httptools (C),
straight from the socket. No redirects, proxies, cookies or compression: model servers need none.

1. One request has one answer. Interim answers (1xx) are skipped. A connection that delivers
   anything else, after the answer or between exchanges, is closed and never reused.
2. An answer that exceeds its `AnswerLimits`, in bytes or in time, is aborted.
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
"""A socket address, IPv4 or IPv6."""
OK = 200
BUFFER_BYTES = 64 << 10
"""Approximate size of the buffer of a streamed answer; reading pauses beyond it."""


class BrokenAnswerError(Exception):
    """The connection ended within an answer, or the data is not HTTP."""


class AnswerLimitError(BrokenAnswerError):
    """The answer exceeds its limits; the message continues a sentence about it."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The largest and longest answer that is read."""

    head_bytes: int = 64 << 10
    """Maximum size of status line and headers, interim answers included; also of the data between
    two pieces of the body, such as chunk sizes."""
    body_bytes: int = 64 << 20
    """Maximum size of a body that is read whole."""
    event_bytes: int = 4 << 20
    """Maximum size of one event of a stream; whole streams are limited by text and time."""
    time_s: float = inf
    """Maximum time from the request to the end of its answer."""


LIMITS = AnswerLimits()
NEXT_ADDRESS_S = 0.25
"""When to try the next address of a name beside one that has not answered (RFC 8305)."""


class Connection(asyncio.Protocol):
    """Runs exchanges one after another; open it with `connect`.

    It is `reusable` if the last exchange is complete, and the server has neither closed the
    connection, nor announced to do so, nor sent unsolicited data.
    """

    def __init__(self, limits: AnswerLimits = LIMITS) -> None:
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._lost: Exception | None = None
        self._status = self._head_bytes = self._overhead_bytes = 0
        """`_overhead_bytes`: received since the last piece of the body."""
        self._has_headers = self._has_length = False
        self._is_complete = self._keeps_alive = self._is_streamed = False
        """`_is_streamed`: whether `chunks` takes the body in pieces."""
        self._body = bytearray()
        self.exchanges = 0
        """Number of exchanges started on this connection."""
        self.headers: dict[bytes, str] = {}
        """Headers of the answer; names in lower case."""
        self.fields: list[tuple[bytes, str]] = []
        """The headers with repeated names."""
        self._reset()

    @property
    def reusable(self) -> bool:
        """Whether another exchange may start."""
        can_continue = self._is_complete and self._keeps_alive and self._lost is None
        return can_continue and not self._has_unread()

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer has arrived."""
        return self._is_complete

    @property
    def socket(self) -> socket.socket:
        """The socket, for its options."""
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    @property
    def address(self) -> Address:
        """The server's address."""
        assert self._transport is not None
        address: Address = self._transport.get_extra_info("peername")
        return address

    def send(self, request: bytes) -> None:
        """Start an exchange."""
        assert self._transport is not None
        self._reset()
        self.exchanges += 1
        if self._limits.time_s < inf:
            late = AnswerLimitError(f"took longer than {self._limits.time_s:g} s")
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._limits.time_s, self._break_off, late)
        self._transport.write(request)

    async def status(self) -> int:
        """The answer's status, once its headers have arrived in `headers`."""
        while not self._has_headers:
            await self._next_data()
        return self._status

    async def content(self) -> bytes:
        """The whole answer, once."""
        while not self._is_complete:
            await self._next_data()
        whole, self._body = bytes(self._body), bytearray()  # a kept connection holds no answer
        return whole

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of the answer as they arrive; reading pauses while they are not taken."""
        assert self._transport is not None
        self._is_streamed = True
        while True:
            if self._body:
                piece, self._body = bytes(self._body), bytearray()
                yield piece
            elif self._is_complete:
                return
            else:
                self._transport.resume_reading()
                await self._next_data()

    def close(self) -> None:
        """Close the connection; an unfinished answer is aborted."""
        self._break_off(BrokenAnswerError("it was closed here"))

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_complete or not self.exchanges:
            self._refuse_unsolicited()
            return
        self._overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break_off(BrokenAnswerError(f"not HTTP: {error}"))
        except httptools.HttpParserUpgrade:
            self._break_off(BrokenAnswerError("it switches to another protocol"))
        self._check_head(self._overhead_bytes)
        assert self._transport is not None
        if self._is_streamed and not self._is_complete and len(self._body) > BUFFER_BYTES:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        ends_with_connection = self._has_headers and not self._has_length
        if exc is None and ends_with_connection and self._lost is None:
            self._is_complete = True
        if self._lost is None:
            closed = ConnectionError("the connection was closed")
            self._lost = BrokenAnswerError("it broke off") if self._has_headers else exc or closed
        self._cancel_deadline()
        self._wake()

    # --- httptools callbacks

    def on_message_begin(self) -> None:
        """Start of an answer: of the exchange, after an interim one, or an unsolicited one."""
        if self._is_complete:
            self._refuse_unsolicited()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header, or a trailer after the body."""
        if self._has_headers:
            return
        self._head_bytes += len(name) + len(value)
        name = name.lower()
        self.headers[name] = _text(value)
        self.fields.append((name, self.headers[name]))
        self._has_length |= name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """End of the headers of the answer, or of an interim answer."""
        if self._has_headers:
            return
        self._status = self._parser.get_status_code()
        self._check_head(self._head_bytes)
        if self._status < OK:
            self.headers, self.fields, self._has_length = {}, [], False
        else:
            self._has_headers = True

    def on_body(self, chunk: bytes) -> None:
        """Receive a piece of the body."""
        if not self._has_headers or self._is_complete or self._lost is not None:
            return
        self._overhead_bytes = 0
        self._body += chunk
        if len(self._body) > self._limits.body_bytes and not self._is_streamed:
            self._break_off(AnswerLimitError(f"is longer than {self._limits.body_bytes:,} bytes"))

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._has_headers and not self._is_complete and self._lost is None:
            self._keeps_alive = self._parser.should_keep_alive()
            self._is_complete = True
            self._cancel_deadline()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers, self.fields = {}, []
        self._body = bytearray()
        self._head_bytes = self._overhead_bytes = 0
        self._has_headers = self._has_length = False
        self._is_complete = self._keeps_alive = self._is_streamed = False
        self.is_ending = False
        """Whether only the end of the answer is missing, after the last event of a stream."""

    def _check_head(self, received_bytes: int) -> None:
        if received_bytes > self._limits.head_bytes:
            what = "sizes or trailers" if self._has_headers else "headers"
            sentence = f"has {what} of more than {self._limits.head_bytes:,} bytes"
            self._break_off(AnswerLimitError(sentence))

    def _refuse_unsolicited(self) -> None:
        """Close: unsolicited data could be taken for the answer to the next request."""
        self._keeps_alive = False
        assert self._transport is not None
        self._transport.abort()

    def _break_off(self, error: Exception) -> None:
        """Close the connection; an incomplete answer ends with `error`."""
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
        """Whether the socket is readable: unsolicited bytes, or closed by the server."""
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def _next_data(self) -> None:
        """Wait for data; raises the error that ended the connection."""
        if self._lost is not None:
            raise self._lost
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        if self._lost is not None and not self._is_complete:
            raise self._lost

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _text(value: bytes) -> str:
    """The value of a header: UTF-8 if it is valid, else Latin-1, in which any bytes are."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, limits: AnswerLimits = LIMITS
) -> Connection:
    """A connection to `host` by name; raises OSError."""
    _, connection = await asyncio.get_running_loop().create_connection(
        partial(Connection, limits), host, port, ssl=tls, happy_eyeballs_delay=NEXT_ADDRESS_S
    )
    return connection


async def connect_to(
    address: Address, tls: ssl.SSLContext | None, name: str, limits: AnswerLimits = LIMITS
) -> Connection:
    """A connection to `address`, whose certificate must be for `name`; raises OSError.

    On one machine it is established at once; waiting for it in asyncio would take most of the time.
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
