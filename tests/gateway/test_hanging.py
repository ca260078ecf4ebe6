"""Engines that hang and keep their connections: requests move to other engines if possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.proxy import Gateway
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.test_preemption import Impatient, at_step, counted, text_of, words
from tests.gateway.test_server import PATHS, post


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_EVERY_S", 0.01)
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.01)
    monkeypatch.setattr("metropolis.gateway.engine_client.PROBE_S", 0.3)


@asynccontextmanager
async def two(pieces: int) -> AsyncIterator[tuple[str, Gateway, StubEngine, StubEngine]]:
    """Yield a gateway with two engines; the first gets the first request and sends `pieces`."""
    first, second = StubEngine(), StubEngine()
    first.pieces = asyncio.Semaphore(pieces)
    before = gateway_before(first, second, policy=Impatient(), dispatcher=RoundRobin)
    async with before as (url, gateway), asyncio.timeout(20):
        yield url, gateway, first, second


def hang(engine: StubEngine) -> None:
    engine.open.clear()
    engine.looks.clear()


@pytest.mark.parametrize(
    ("path", "body", "pieces"),
    [
        (PATHS[0], chat("why"), 0),  # nothing has arrived
        (PATHS[0], chat("why", stream=True), 0),
        (PATHS[1], counted("p", 9), 4),  # a stream that can be resumed
        (PATHS[1], counted("p", 9, stream=False), 4),  # the client has nothing yet
    ],
)
def test_requests_at_an_engine_that_hangs_go_on_elsewhere(
    path: str, body: dict[str, Any], pieces: int
) -> None:
    async def ask() -> None:
        async with two(pieces) as (url, gateway, first, second):
            if not pieces:
                first.open.clear()
            asked = asyncio.create_task(post(url, body, path=path, headers=at_step(1)))
            await until(lambda: first.raw and first.sent == pieces)
            hang(first)
            status, answer, _ = await asked
            assert status == 200
            assert len(second.raw) == 1
            if path == PATHS[1] and body["stream"]:
                assert text_of(answer) == words(9)
            assert gateway.metrics.retried == 1
            assert gateway.scheduling.in_flight == [0, 0]
            assert gateway.scheduling.is_up == [False, True]
            first.looks.set()
            await until(lambda: gateway.scheduling.is_up == [True, True])

    asyncio.run(ask())


def test_an_engine_that_answers_all_but_looks_keeps_its_requests() -> None:
    async def ask() -> None:
        async with two(4) as (url, gateway, first, second):
            asked = asyncio.create_task(
                post(url, counted("p", 9), path=PATHS[1], headers=at_step(1))
            )
            await until(lambda: first.sent == 4)
            first.look_status = 503
            await until(lambda: gateway.pool.failed_probes[0] > 3)
            assert first.pieces is not None
            for _ in range(9):
                first.pieces.release()
            status, answer, _ = await asked
            assert (status, text_of(answer)) == (200, words(9))
            assert (len(second.raw), gateway.metrics.retried) == (0, 0)

    asyncio.run(ask())


def test_models_are_asked_of_another_engine_when_one_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_S", 0.3)

    async def ask() -> None:
        async with two(0) as (url, _, first, _), aiohttp.ClientSession() as session:
            hang(first)
            async with session.get(f"{url}/v1/models") as models:
                assert models.status == 200

    asyncio.run(ask())


def test_an_engine_that_lists_no_models_in_time_is_lost_for_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_S", 0.05)

    async def ask() -> list[str]:
        engine, logged = StubEngine(), list[str]()
        async with gateway_before(engine, log=logged.append) as (_, gateway):
            hang(engine)
            with pytest.raises(EngineLostError):
                await gateway.pool.models("/v1/models", {})
        return logged

    assert any("was lost: it did not answer within 0.05 s" in line for line in asyncio.run(ask()))


def test_what_cannot_be_repeated_and_what_has_nowhere_to_go_waits() -> None:
    async def ask() -> None:
        async with two(2) as (url, gateway, first, second):
            begun = asyncio.create_task(post(url, chat("a", stream=True)))
            await until(lambda: first.sent == 2)
            second.open.clear()
            whole = asyncio.create_task(post(url, chat("b")))
            await until(lambda: second.raw)
            hang(first)
            await until(lambda: not gateway.scheduling.is_up[0])
            hang(second)
            await until(lambda: min(gateway.pool.silent_probes) > 2)
            first.looks.set()
            second.open.set()
            assert (await whole)[0] == 200
            assert len(second.raw) == 1
            assert first.pieces is not None
            for _ in range(9):
                first.pieces.release()
            assert (await begun)[0] == 200
            assert len(first.raw) == 1
            assert gateway.metrics.retried == 0

    asyncio.run(ask())
