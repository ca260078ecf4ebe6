"""One connection of a client, and the effect of its end."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from metropolis.llm import UnavailableError
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.connection import BrokenAnswerError
from metropolis.llm.backends.http import parse_url
from metropolis.llm.backends.pool import Connections
from tests.gateway.certificate import CERTIFICATE


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


@pytest.mark.parametrize(
    ("host", "trusted", "reason"),
    [
        ("localhost", False, "self-signed certificate"),
        ("127.0.0.1", True, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
def test_a_certificate_that_is_not_trusted_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, trusted: bool, reason: str
) -> None:
    file = tmp_path / "localhost.pem"
    file.write_text(CERTIFICATE)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", f"{file}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)

    async def ask() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        backend = Compatible(f"https://{host}:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(UnavailableError) as refused:
            await backend.check()
        said = f"{refused.value}".partition("check: ")[2]
        assert said == (
            f"its certificate is not trusted ({reason}); SSL_CERT_FILE may name trusted ones"
        )
        server.close()

    asyncio.run(ask())
