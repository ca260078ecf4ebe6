"""Clients that write their requests byte by byte, for tests of what HTTP libraries do not send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from metropolis.gateway.routes import COMPLETIONS

LOOPBACK = b"Host: 127.0.0.1\r\n"


@asynccontextmanager
async def connected(
    url: str, sent: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection on which `sent` has been sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(sent)
    await writer.drain()
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.close()


def post_of(body: bytes, length: int | None = None, path: str = COMPLETIONS) -> bytes:
    """A request with `body`, or the beginning of one whose body has `length` bytes."""
    head = f"POST {path} HTTP/1.1\r\nContent-Length: {length or len(body)}\r\n".encode()
    return head + LOOPBACK + b"\r\n" + body
