"""One HTTP/1.1 connection to a server, with as little work per call as it takes.

Of what a run costs beside its model nearly all is HTTP, so answers are parsed by httptools (C),
straight from the socket. No redirects, proxies, cookies, compression: servers of models need none.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator

import httptools

Address = tuple[str, int] | tuple[str, int, int, int]
"""Of a host by its number, in IPv4 or IPv6."""
AHEAD_BYTES = 64 << 10
"""A server may be ahead by about so much of whoever takes its answer in pieces."""


class BrokenAnswerError(Exception):
    """The connection ended within an answer, or what came is no HTTP."""


class Connection(asyncio.Protocol):
    """Carries one exchange after another; open one with `connect`.

    `reusable` tells whether another exchange may begin: the last one is complete, and the server
    has neither closed the connection nor said that it will.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        self._chunks: list[bytes] = []
        self._untaken_bytes = 0
        self._headed = self._framed = self._complete = self._keep = self._in_pieces = False
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
        return self._complete and self._keep and self._lost is None

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
        self._transport.write(request)

    async def status(self) -> int:
        """The answer's status, when its headers have come; `headers` has them then."""
        while not self._headed:
            await self._change()
        return self._parser.get_status_code()

    async def content(self) -> bytes:
        """The whole answer."""
        while not self._complete:
            await self._change()
        return b"".join(self._chunks)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer's pieces as they come; while they are not taken, no more are read."""
        assert self._transport is not None
        self._in_pieces = True
        while True:
            chunks, self._chunks = self._chunks, []
            for chunk in chunks:
                yield chunk
            if self._complete and not self._chunks:
                return
            if not self._chunks:
                self._untaken_bytes = 0
                self._transport.resume_reading()
                await self._change()

    def close(self) -> None:
        """End the connection, whatever is going on in it: what has come of an answer is cut off."""
        if self._lost is None:
            self._lost = BrokenAnswerError("it was ended here")
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = BrokenAnswerError(f"no HTTP: {error}")
            self.close()
        if self._in_pieces and not self._complete and self._untaken_bytes > AHEAD_BYTES:
            assert self._transport is not None
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
        self._wake()

    # --- what httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        name = name.lower()
        self.headers[name] = value.decode("latin-1")
        self.fields.append((name, self.headers[name]))
        self._framed |= name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """The answer itself follows."""
        self._headed = True

    def on_body(self, chunk: bytes) -> None:
        """A piece of it."""
        self._chunks.append(chunk)
        self._untaken_bytes += len(chunk)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._keep = self._parser.should_keep_alive()
        self._complete = True

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers, self.fields = {}, []
        self._chunks = []
        self._untaken_bytes = 0
        self._headed = self._framed = self._complete = self._keep = self._in_pieces = False

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


async def connect(host: str, port: int, tls: ssl.SSLContext | None) -> Connection:
    """A connection to the `host` of that name; raises OSError."""
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, host, port, ssl=tls
    )
    return connection


async def connect_again(address: Address, tls: ssl.SSLContext | None, name: str) -> Connection:
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
            Connection, sock=reached, ssl=tls, server_hostname=name if tls else None
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
