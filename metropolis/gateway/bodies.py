"""Reads request bodies within the limits."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from aiohttp import web

from metropolis.gateway.connections import RETRY_AFTER, ClientConnection, Connections
from metropolis.gateway.limits import BODY_RATE_MIN, Limits
from metropolis.types import MetropolisError

ENCODINGS = ("identity", "gzip", "deflate")
ANY_ZLIB = 32 + zlib.MAX_WBITS
"""zlib's wbits that detect gzip or zlib."""
PIECE_BYTES = 64 << 10
"""Maximum decompressed at once."""
BADLY_ENCODED = "the body is not encoded as its Content-Encoding or Transfer-Encoding says"


async def body_of(request: web.Request, connections: Connections) -> bytes:
    """Return the whole body, decompressed; its bytes count until the request is answered.

    Raises MetropolisError, or web.HTTPException with the reason.
    """
    connection, limits = request.protocol, connections.limits
    assert isinstance(connection, ClientConnection)
    if (request.content_length or 0) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    body = bytearray()  # a list of small pieces would take more memory than counted
    async for piece in _unpacked(request, limits):
        if len(body) + len(piece) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        if not connections.has_room(connection, len(piece)):
            sentence = "the bodies of all requests take too much memory; try again later"
            raise web.HTTPServiceUnavailable(reason=sentence, headers=RETRY_AFTER)
        body += piece
    connections.mark_complete(connection)
    return bytes(body)


async def _unpacked(request: web.Request, limits: Limits) -> AsyncIterator[bytes]:
    """Yield pieces of the body. Compressed ones yield to the event loop between pieces, as 16 KiB
    may take a second to decompress."""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ENCODINGS:
        raise web.HTTPUnsupportedMediaType(reason="Content-Encoding is neither gzip nor deflate")
    decoder = None if encoding == "identity" else zlib.decompressobj(ANY_ZLIB)
    try:
        async for piece in _received(request, limits):
            if decoder is None:
                yield piece
                continue
            while piece:
                yield decoder.decompress(piece, PIECE_BYTES)
                piece = decoder.unconsumed_tail
                await asyncio.sleep(0)
        if decoder is not None and (not decoder.eof or decoder.unused_data):
            raise MetropolisError(BADLY_ENCODED)
    except (zlib.error, web.RequestPayloadError):
        raise MetropolisError(BADLY_ENCODED) from None


async def _received(request: web.Request, limits: Limits) -> AsyncIterator[bytes]:
    """Yield pieces of the body as they arrive; raises web.HTTPRequestTimeout on a slow one."""
    clock = asyncio.get_running_loop().time
    began_s, size = clock(), 0
    while True:
        latest_s = began_s + 2 * limits.stall_s + size / BODY_RATE_MIN
        try:
            async with asyncio.timeout_at(min(clock() + limits.stall_s, latest_s)):
                piece = await request.content.readany()
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                reason=_too_slow(clock() < latest_s, limits.stall_s)
            ) from None
        if not piece:
            return
        size += len(piece)
        yield piece


def _too_large(limit: int) -> web.HTTPException:
    sentence = f"the body has more than {limit:,} bytes; send a smaller one or raise --body-limit"
    return web.HTTPRequestEntityTooLarge(limit, limit, reason=sentence)


def _too_slow(is_stalled: bool, stall_s: float) -> str:
    if is_stalled:
        return f"no byte of the body arrived for {stall_s:g} s"
    return f"the body arrives more slowly than {BODY_RATE_MIN} bytes per second"
