"""Metrics count every request once, by outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from metropolis.gateway.access import Access
from metropolis.gateway.exchange_driver import ExchangeDriver
from metropolis.gateway.limits import Limits
from metropolis.gateway.metrics import OTHER, Metrics
from metropolis.gateway.proxy import Gateway
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.route_engine import RouteEngine
from tests.gateway.test_access import ALICE, keys_in
from tests.gateway.test_loss import BreakingEngine
from tests.gateway.test_preemption import Impatient, counted
from tests.gateway.test_server import PATHS, post


def statuses(gateway: Gateway) -> Counter[tuple[bool, int]]:
    """Return the counts by (whether the request was at the first engine, status)."""
    counted: Counter[tuple[bool, int]] = Counter()
    for (engine, _, status), count in gateway.metrics.requests.items():
        counted[engine == gateway.engines[0].name, status] += count
    return counted


def drivers_of(gateway: Gateway) -> list[ExchangeDriver]:
    """Return those of the requests in progress."""
    return [one for one in gateway.pool.in_progress if isinstance(one, ExchangeDriver)]


def test_clients_that_leave_are_counted_where_they_were() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.pieces = asyncio.Semaphore(2)
        async with gateway_before(engine, at_once=1) as (url, gateway):
            asked = []
            for waiting in (0, 1):  # one at the engine, one in the queue
                asked.append(asyncio.create_task(post(url, chat("a", stream=True))))
                await until(lambda n=waiting: len(gateway.scheduling) == n and engine.sent == 2)
            for one in reversed(asked):
                one.cancel()
                await asyncio.gather(one, return_exceptions=True)
            await until(lambda: gateway.metrics.aborted == 2)
            assert statuses(gateway) == {(True, 499): 1, (False, 499): 1}

    asyncio.run(ask())


def test_a_client_that_leaves_before_its_joined_answer_is_counted_as_gone() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.pieces = asyncio.Semaphore(4)  # all but the end of the stream
        async with gateway_before(engine, policy=Impatient()) as (url, gateway):
            asked = asyncio.create_task(post(url, counted("a", 3, stream=False), path=PATHS[1]))
            await until(lambda: any(one.exchange.is_at_its_end for one in drivers_of(gateway)))
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await until(lambda: statuses(gateway))
            assert statuses(gateway) == {(True, 499): 1}
            assert gateway.metrics.aborted == 1

    asyncio.run(ask())


def test_a_stream_that_is_broken_off_is_no_success(tmp_path: Path) -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.pieces = asyncio.Semaphore(2)
        access = Access(keys=keys_in(tmp_path, f"alice {ALICE}"))
        headers = {"Authorization": f"Bearer {ALICE}"}
        async with gateway_before(engine, access=access) as (url, gateway):
            asked = asyncio.create_task(post(url, chat("a", stream=True), headers=headers))
            await until(lambda: engine.sent == 2)
            await engine.kill()
            with pytest.raises(aiohttp.ClientPayloadError):
                await asked
            await until(lambda: statuses(gateway) == {(True, 502): 1})
            assert gateway.metrics.tenants == {("alice", 502): 1}
            assert 'latency_seconds_bucket{le="+Inf"} 0.0' in gateway.metrics.text({}, {}, 0, 0)
            await engine.start()

    asyncio.run(ask())


def test_functions_that_are_forgotten_are_counted_as_others() -> None:
    metrics = Metrics()
    for engine, function, status in (("a", "old", 200), ("b", "old", 200), ("a", "new", 200)):
        metrics.requests[engine, function, status] += 2
    metrics.requests["a", OTHER, 200] += 1
    metrics.forget("old")
    assert metrics.requests == {("a", OTHER, 200): 3, ("b", OTHER, 200): 2, ("a", "new", 200): 2}


def test_what_was_given_up_or_refused_is_counted() -> None:
    async def ask() -> None:
        engine = BreakingEngine(b"")
        async with gateway_before(engine) as (url, gateway):
            assert (await post(url, chat("poison")))[0] == 502
            assert statuses(gateway) == {(True, 502): 1}
        full = StubEngine()
        async with gateway_before(full, queue_limit=0) as (url, gateway):
            assert (await post(url, chat("late")))[0] == 429
            assert statuses(gateway) == {(False, 429): 1}
            assert gateway.metrics.refused == 1
        full.status = 429
        async with gateway_before(full) as (url, gateway):  # the engine refuses, not the gateway
            assert (await post(url, chat("late")))[0] == 429
            assert statuses(gateway) == {(True, 429): 1}
            assert gateway.metrics.refused == 0

    asyncio.run(ask())


def test_unordered_requests_that_are_refused_are_counted() -> None:
    async def ask() -> None:
        route = "/v1/embeddings"
        async with gateway_before(RouteEngine()) as (url, gateway):
            body = b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}"
            for sent, status in ((chat("a"), 202), (chat("a") | {"model": "b"}, 404), (body, 400)):
                assert (await post(url, sent, path=route))[0] == status
            assert gateway.metrics.passed == {
                (gateway.engines[0].name, route, 202): 1, ("", route, 404): 1, ("", route, 400): 1,
            }  # fmt: skip

    asyncio.run(ask())


def test_requests_whose_bodies_are_refused_are_counted() -> None:
    async def ask() -> None:
        limits, encoded = Limits(body_bytes=1000), {"Content-Encoding": "gzip"}
        async with gateway_before(RouteEngine(), limits=limits) as (url, gateway):
            for path in (PATHS[0], "/v1/embeddings"):
                for sent, headers, status in ((b" " * 2000, {}, 413), (b"no gzip", encoded, 400)):
                    assert (await post(url, sent, path=path, headers=headers))[0] == status
            assert statuses(gateway) == {(False, 413): 1, (False, 400): 1}
            assert {key[1:]: n for key, n in gateway.metrics.passed.items()} == {
                ("/v1/embeddings", 413): 1, ("/v1/embeddings", 400): 1,
            }  # fmt: skip

    asyncio.run(ask())
