"""Limits for clients: malformed, slow, too many and too large requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import ssl
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from metropolis.gateway.connections import TLSConnection
from metropolis.gateway.limits import Limits
from metropolis.gateway.proxy import Gateway
from tests.gateway.certificate import CERTIFICATE
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.raw_clients import LOOPBACK, connected, post_of
from tests.gateway.test_server import PATHS, post

SECRET = "sk-very-secret-0123456789"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer %b\x00\r\n\r\n", "is not well-formed HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nAuthorization Bearer %b\r\n\r\n", "is not well-formed HTTP/1.1"),
        (b"GET /?key=%b HTTP/9.9\r\n\r\n", "is not well-formed HTTP/1.1"),
        (b"%b\r\n\r\n", "is not well-formed HTTP/1.1"),
        (
            b"GET / HTTP/1.1\r\nX-Api-Key: %b" + b"a" * 9000 + b"\r\n\r\n",
            "a line of more than 8190",
        ),
        (b"GET / HTTP/1.1\r\n" + b"A: %b\r\n" * 200 + b"\r\n", "more than 128 headers"),
    ],
)
def test_malformed_requests_are_refused_without_what_they_hold(
    request_: bytes, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    async def ask() -> None:
        async with gateway_before(StubEngine(), log=told.append) as (url, gateway):
            told.clear()
            for _ in range(5):
                async with connected(url, request_.replace(b"%b", SECRET.encode())) as (reader, _):
                    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 400 ") or head.startswith(b"HTTP/1.0 400 ")
                    assert sentence in json.loads(content)["error"]["message"]
                    assert SECRET.encode() not in head + content
            assert gateway.metrics.early_rejections["malformed"] == 5
            (line,) = told
            assert sentence in line
            assert (await post(url, chat("why")))[0] == 200

    with caplog.at_level(logging.WARNING):
        asyncio.run(ask())
    assert not caplog.records


def test_a_fault_of_the_gateway_is_logged_without_keys(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Gateway, path: str, headers: Any, *_: Any) -> None:
        raise LookupError(f"{path} {headers}")

    monkeypatch.setattr(Gateway, "parse", fail)

    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, _):
            headers = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET[::-1]}
            path = f"{PATHS[0]}?a=1&key=k{SECRET}"
            status, answer, _ = await post(url, chat("why"), headers=headers, path=path)
            assert status == 500
            assert json.loads(answer)["error"]["type"] == "server_error"
            assert SECRET not in answer.decode()

    asyncio.run(ask())
    (line,) = (record.getMessage() for record in caplog.records if record.levelno > logging.INFO)
    assert "LookupError: /v1/chat/completions?a=1&key=[hidden]" in line
    assert SECRET not in line
    assert SECRET[::-1] not in line


def test_a_head_that_comes_slowly_is_refused() -> None:
    async def ask() -> None:
        limits = Limits(header_s=0.2)
        async with (
            gateway_before(StubEngine(), limits=limits) as (url, gateway),
            connected(url, b"GET /health HTTP/1.1\r\n") as (reader, writer),
        ):
            for _ in range(5):
                writer.write(b"X: y\r\n")
                await asyncio.sleep(0.05)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"the head of a request is incomplete after 0.2 s" in answer
            assert gateway.metrics.early_rejections == {"slow": 1}

    asyncio.run(ask())


def test_a_body_that_comes_slowly_is_refused() -> None:
    async def ask() -> None:
        async with (
            gateway_before(StubEngine(), limits=Limits(stall_s=0.3)) as (url, _),
            connected(url, post_of(b"{", 100)) as (reader, writer),
        ):
            for _ in range(5):
                await asyncio.sleep(0.1)
                writer.write(b" ")
            answer = await reader.readuntil(b"}}")
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"the body arrives more slowly than 1024 bytes per second" in answer

    asyncio.run(ask())


def test_a_connection_without_a_request_is_closed() -> None:
    async def ask() -> None:
        async with (
            gateway_before(StubEngine(), limits=Limits(idle_s=0.2)) as (url, _),
            connected(url) as (reader, _),
        ):
            assert await reader.read() == b""

    asyncio.run(ask())


def test_a_new_connection_takes_the_place_of_the_slowest() -> None:
    async def ask() -> None:
        limits = Limits(connections=3)
        async with (
            gateway_before(StubEngine(), limits=limits) as (url, gateway),
            aiohttp.ClientSession() as session,
        ):

            async def ask_again() -> None:
                async with session.post(url + PATHS[0], json=chat("why")) as answer:
                    assert answer.status == 200

            await ask_again()  # its connection has had an answer, so it is kept
            async with (
                connected(url, post_of(b"{", 100)) as (sender, _),
                connected(url, b"GET") as (newer, _),
            ):
                assert (await post(url, chat("why")))[0] == 200
                assert await sender.read() == b""
                assert gateway.metrics.early_rejections == {"connections": 1}
                assert not newer.at_eof()
                await ask_again()

    asyncio.run(ask())


def test_a_connection_too_many_is_refused_while_all_have_requests() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with gateway_before(engine, limits=Limits(connections=2)) as (url, _):
            asked = [asyncio.create_task(post(url, chat(f"{n}"))) for n in range(2)]
            await until(lambda: len(engine.raw) == 2)
            async with connected(url) as (reader, _):
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"\r\nRetry-After: 1\r\n" in answer
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"]
            engine.open.set()
            assert [status for status, *_ in await asyncio.gather(*asked)] == [200, 200]
            assert (await post(url, chat("late")))[0] == 200

    asyncio.run(ask())


def test_connections_count_before_their_tls_handshake(tmp_path: Path) -> None:
    """Therefore a flood of them cannot exhaust open files or memory."""
    certificate = tmp_path / "gate.pem"
    certificate.write_text(CERTIFICATE)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    trusted: Any = ssl.create_default_context(cafile=str(certificate))

    async def ask() -> None:
        limits = Limits(connections=2)
        async with (
            gateway_before(StubEngine(), limits=limits, tls=tls) as (url, gateway),
            connected(url, b"\x16\x03\x01") as (first, _),
            connected(url, b"\x16\x03\x01"),
            connected(url, b"\x16\x03\x01"),
        ):
            assert await first.read() == b""
            assert gateway.metrics.early_rejections == {"connections": 1}
            url = url.replace("127.0.0.1", "localhost")
            assert (await post(url, chat("why"), ssl=trusted))[0] == 200
            assert gateway.metrics.early_rejections == {"connections": 2}

    asyncio.run(ask())
    assert TLSConnection.max_size == 16 << 10


def test_a_tls_handshake_has_a_time(tmp_path: Path) -> None:
    certificate = tmp_path / "gate.pem"
    certificate.write_text(CERTIFICATE)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)

    async def ask() -> None:
        limits = Limits(header_s=0.2)
        async with (
            gateway_before(StubEngine(), limits=limits, tls=tls) as (url, _),
            connected(url, b"\x16\x03\x01") as (reader, _),
        ):
            assert await reader.read() == b""

    asyncio.run(ask())


def test_bodies_have_a_bound_together() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        limits = Limits(bodies_bytes=3000)
        async with gateway_before(engine, limits=limits) as (url, _):
            held = asyncio.create_task(post(url, chat("x" * 1500)))
            await until(lambda: engine.raw)
            slow = b'{"prompt": "%b' % (b"y" * 1000)
            async with connected(url, post_of(slow, 2000)) as (reader, _):
                await asyncio.sleep(0.1)  # until the body has arrived
                status, answer, headers = await post(url, chat("x" * 2500))
                assert (status, headers["Retry-After"]) == (503, "1")
                assert b"take too much memory" in answer
                assert await reader.read() == b""  # the slower one is dropped first
            engine.open.set()
            assert (await held)[0] == 200
            assert (await post(url, chat("x" * 2500)))[0] == 200

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("item", "sentence"),
    [(b"[]", "too many values"), (b"{}", "too many values"), (b'""', "too many values")],
)
def test_bodies_that_are_costly_to_decode_are_refused_beside_others(
    item: bytes, sentence: str
) -> None:
    body = b'{"messages": [%b]}' % b",".join([item] * (4 << 20))

    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _):
            status, answer, _ = await post(url, body[: 16 << 20])
            assert status == 400
            assert sentence in json.loads(answer)["error"]["message"]
            assert not engine.raw

    asyncio.run(ask())


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_bodies_that_unpack_to_much_are_refused_beside_others(pack: Any) -> None:
    packed = pack(b" " * (200 << 20))

    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _), aiohttp.ClientSession() as session:
            headers = {"Content-Encoding": "gzip"}
            asked = asyncio.create_task(post(url, packed, headers=headers))
            looks = 0
            while not asked.done():
                async with session.get(f"{url}/health") as answer:
                    looks += answer.status == 200
            assert (await asked)[0] == 413
            assert looks > 5
            assert not engine.raw

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("packed", "encoding", "status"),
    [
        (zlib.compress(b'{"prompt": "a"}'), "deflate", 200),
        (gzip.compress(b'{"prompt": "a"}', mtime=0), "gzip", 200),
        (gzip.compress(b'{"prompt": "a"}', mtime=0)[:-1], "gzip", 400),
        (gzip.compress(b'{"prompt": "a"}', mtime=0) + b"a", "gzip", 400),
        (b'{"prompt": "a"}', "deflate", 400),
        (b'{"prompt": "a"}', "br", 415),
        (b'{"prompt": "a"}', "gzip, gzip", 415),
    ],
)
def test_bodies_are_unpacked(packed: bytes, encoding: str, status: int) -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _):
            headers = {"Content-Encoding": encoding}
            assert (await post(url, packed, headers=headers, path=PATHS[1]))[0] == status
            assert engine.raw == ([b'{"prompt": "a"}'] if status == 200 else [])

    asyncio.run(ask())


def test_expectations_that_nothing_meets_are_told_in_openai_form() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, _):
            head = b"POST /v1/completions HTTP/1.1\r\nExpect: wonders\r\nContent-Length: 2\r\n"
            async with connected(url, head + LOOPBACK + b"\r\n{}") as (reader, _):
                answer: Any = await reader.readuntil(b"}}")
                assert answer.startswith(b"HTTP/1.1 417 ")
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 417

    asyncio.run(ask())
