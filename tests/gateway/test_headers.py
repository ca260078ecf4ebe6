"""Headers that are forwarded, and those of a single connection."""

from __future__ import annotations

import asyncio

from tests.gateway.engines import StubEngine, chat, gateway_before
from tests.gateway.test_loss import BreakingEngine
from tests.gateway.test_server import post


def test_what_a_client_says_of_its_connection_is_not_handed_on() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _):
            headers = {"Connection": "keep-alive, X-Hop", "X-Hop": "secret", "X-Own": "7"}
            await post(url, chat("why"), headers=headers)
            (seen,) = engine.headers
            assert "X-Hop" not in seen
            assert seen["X-Own"] == "7"

    asyncio.run(ask())


def test_headers_of_one_name_stay_several_and_those_of_the_connection_stay_behind() -> None:
    lines = ("200 OK", "Set-Cookie: a=1", "Set-Cookie: b=2", "Connection: X-Hop", "X-Hop: secret")
    head = "\r\n".join((*lines, "Content-Length: 2\r\n\r\n{}"))

    async def ask() -> None:
        engine = BreakingEngine(f"HTTP/1.1 {head}".encode())
        async with gateway_before(engine) as (url, _):
            status, answer, headers = await post(url, chat("why"))
            assert (status, answer) == (200, b"{}")
            assert headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert "X-Hop" not in headers

    asyncio.run(ask())


def test_the_values_of_an_answers_headers_reach_the_client_as_utf8() -> None:
    head = "200 OK\r\nX-Own: café €\r\n".encode() + b"X-Old: caf\xe9\r\n"

    async def ask() -> None:
        engine = BreakingEngine(b"HTTP/1.1 %bContent-Length: 2\r\n\r\n{}" % head)
        async with gateway_before(engine) as (url, _):
            _, _, headers = await post(url, chat("why"))  # aiohttp decodes UTF-8
            assert (headers["X-Own"], headers["X-Old"]) == ("café €", "café")

    asyncio.run(ask())
