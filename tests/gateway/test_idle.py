"""Connections that wait for their next request keep no answer."""

from __future__ import annotations

import asyncio
import gc
import json

from metropolis.gateway.routes import CHATS
from tests.gateway.engines import chat, gateway_before
from tests.gateway.raw_clients import connected, post_of
from tests.llm.raw_server import RawServer, answer

LARGE = 1_000_000


def holders(size: int) -> list[str]:
    """Kinds of the objects that refer to at least `size` bytes."""
    gc.collect()
    return [
        type(one).__name__
        for one in gc.get_objects()
        for held in gc.get_referents(one)
        if isinstance(held, bytes | bytearray) and len(held) >= size
    ]


def test_idle_connections_hold_no_answer() -> None:
    async def ask() -> None:
        engine = RawServer(lambda _: [answer(b"x" * LARGE)])
        async with gateway_before(engine) as (url, _):
            before = holders(LARGE)
            sent = post_of(json.dumps(chat("hello")).encode(), path=CHATS)
            async with connected(url, sent) as (reader, _):
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(LARGE)
                await asyncio.sleep(0.1)  # the gateway's task ends
                assert holders(LARGE) == before

    asyncio.run(ask())
