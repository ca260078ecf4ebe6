"""Requests whose clients have left, aborted in an SGLang."""

from __future__ import annotations

import asyncio

from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.test_server import post

NEIGHBOURS = 12


def test_an_abort_hits_nobody_elses_request() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with gateway_before(engine, kind="sglang:") as (url, _):
            leaving = asyncio.create_task(post(url, chat("leaves")))
            await until(lambda: engine.raw)
            staying = [asyncio.create_task(post(url, chat(str(n)))) for n in range(NEIGHBOURS)]
            await until(lambda: len(engine.running) == 1 + NEIGHBOURS)
            leaving.cancel()
            await until(lambda: engine.aborted)
            assert engine.aborted == [engine.bodies[0]["rid"]]
            assert set(engine.hit) <= set(engine.aborted)
            engine.open.set()
            assert [status for status, *_ in await asyncio.gather(*staying)] == [200] * NEIGHBOURS

    asyncio.run(ask())
