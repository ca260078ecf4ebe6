"""Clients that do not take what there is: the engine waits with them, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from tests.gateway.engines import StubEngine, gateway_before, until
from tests.gateway.test_preemption import Impatient, at_step, counted, text_of, words
from tests.gateway.test_server import PATHS, post

PIECES = 800
LARGE = counted("x" * 100_000, PIECES)
"""Every piece carries the first word: more than the sockets between engine and client take."""


@asynccontextmanager
async def reader_of(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """The head of an answer has come; of the rest a few bytes are read ahead."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + PATHS[1], json=LARGE, headers=at_step(9), read_bufsize=1024) as answer,
    ):
        yield answer


async def steady(number: Callable[[], int]) -> int:
    """What `number` comes to, as soon as it rests."""
    last = -1
    while number() != last:
        last = number()
        await asyncio.sleep(0.5)
    return last


def test_the_engine_waits_for_its_client() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, gateway), reader_of(url) as answer:
            assert 0 < await steady(lambda: engine.sent) < PIECES / 2
            assert gateway.admission.at_work == [1]
            assert text_of(await answer.read()) == words(PIECES)
            assert engine.sent == PIECES + 2
            await until(lambda: gateway.admission.at_work == [0])

    asyncio.run(ask())


def test_a_client_that_takes_nothing_for_long_has_left() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine, stall_s=0.5) as (url, gateway), reader_of(url):
            await until(lambda: engine.left == 1 and gateway.figures.aborted == 1)
            assert engine.sent < PIECES
            assert gateway.admission.at_work == [0]

    asyncio.run(ask())


def test_who_is_behind_is_not_preempted() -> None:
    """It could not be told until its client takes what there is."""

    async def ask() -> None:
        engine = StubEngine()
        async with (
            gateway_before(engine, policy=Impatient(), at_once=2) as (url, gateway),
            reader_of(url) as answer,
        ):
            await steady(lambda: engine.sent)
            engine.piece_s = 0.01
            asked = []
            for step, body in ((3, counted("long", 60)), (0, counted("short", 1))):
                one = post(url, body, path=PATHS[1], headers=at_step(step))
                asked.append(asyncio.create_task(one))
                await until(lambda: len(engine.raw) > len(asked))
            await asyncio.gather(*asked)
            assert gateway.figures.preempted == 1
            assert [body["prompt"][:4] for body in engine.bodies[1:]] == ["long", "shor", "long"]
            engine.piece_s = 0.0
            assert text_of(await answer.read()) == words(PIECES)

    asyncio.run(ask())
