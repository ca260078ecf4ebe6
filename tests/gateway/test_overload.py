"""The dispatcher is notified of engines whose metrics show preemptions for lack of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import RoundRobin
from metropolis.dispatch.kairos import KairosPacking
from metropolis.gateway.engine_client import EngineClient
from tests.gateway.engines import StubEngine, answer_to, chat, gateway_before, until
from tests.gateway.test_server import post


class Told(RoundRobin):
    """Records the instances that it is notified of."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.overloaded: list[int] = []

    def preempted(self, instance: int, now_s: float) -> None:
        self.overloaded.append(instance)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_EVERY_S", 0.01)
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.01)


def counted_again(engine: StubEngine) -> Callable[[], bool]:
    """Return whether its metrics were read twice more; the first read may have begun earlier."""
    before = engine.counted
    return lambda: engine.counted > before + 1


def test_the_dispatcher_is_told_of_each_engine_that_preempts() -> None:
    async def ask() -> None:
        engines, told = [StubEngine("sglang"), StubEngine("sglang")], list[Told]()
        engines[1].preemptions = 5  # before the gateway started

        def dispatcher(fleet: Fleet) -> Told:
            told.append(Told(fleet))
            return told[0]

        async with gateway_before(*engines, dispatcher=dispatcher) as (_, gateway):
            await until(lambda: min(engine.counted for engine in engines) > 1)
            assert told[0].overloaded == []
            engines[1].preemptions += 2
            await until(lambda: told[0].overloaded == [1])
            engines[1].metrics_status = 503  # no metrics for a time
            await until(counted_again(engines[1]))
            engines[1].metrics_status = 200
            await engines[0].kill()
            await until(lambda: gateway.scheduling.is_up == [False, True])
            engines[0].preemptions = 3  # the count after a restart
            await engines[0].start()
            for engine in engines:
                await until(counted_again(engine))
            assert told[0].overloaded == [1]

    asyncio.run(ask())


def test_kairos_places_nothing_there_until_a_request_has_left() -> None:
    async def ask() -> None:
        engine = StubEngine("sglang")
        engine.open.clear()
        async with gateway_before(engine, dispatcher=KairosPacking) as (url, gateway):
            await until(counted_again(engine))
            asked = [asyncio.create_task(post(url, chat("first")))]
            await until(lambda: engine.raw)
            engine.preemptions += 1
            await until(counted_again(engine))
            asked.append(asyncio.create_task(post(url, chat("second"))))
            await until(lambda: len(gateway.scheduling) == 1)
            engine.open.set()
            answers = [await one for one in asked]
            assert [answer for _, answer, _ in answers] == [answer_to("first"), answer_to("second")]
            engine.preemptions += 1  # detected when the engine is idle
            await until(counted_again(engine))
            assert (await post(url, chat("third")))[1] == answer_to("third")

    asyncio.run(ask())


def test_engines_that_tell_nothing_are_not_overloaded() -> None:
    async def ask() -> None:
        engine = StubEngine()
        url = await engine.start()
        asked = EngineClient(url)
        engine.preemptions = 4
        assert await asked.preemptions() == 4
        engine.metrics_status = 404
        assert await asked.preemptions() is None
        await engine.kill()
        assert await asked.preemptions() is None
        await asked.close()

    asyncio.run(ask())
