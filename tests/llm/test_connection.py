"""One connection of a client, and the effect of its end."""

from __future__ import annotations

import asyncio

import pytest

from metropolis.llm.backends.connection import BrokenAnswerError
from metropolis.llm.backends.http import parse_url
from metropolis.llm.backends.pool import Connections


@pytest.mark.parametrize("ours", [False, True])
def test_an_answer_ended_by_its_connection_is_complete_unless_we_closed_it(ours: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbegun")
        if ours:
            await reader.read()
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await Connections(parse_url(f"http://127.0.0.1:{port}")).take()
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await connection.status() == 200
        pieces = connection.chunks()
        assert await anext(pieces) == b"begun"
        if ours:
            connection.close()
            with pytest.raises(BrokenAnswerError, match="it was closed here"):
                await anext(pieces)
        else:
            assert [piece async for piece in pieces] == []
        server.close()

    asyncio.run(ask())
