"""Aborts on SGLang of requests whose clients disconnected."""

from __future__ import annotations

import asyncio

import pytest

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


async def leave(url: str, engine: StubEngine, question: str) -> None:
    """Send a request with a key of its own and disconnect once it is at the engine."""
    headers = {"Authorization": f"Bearer {question}"}
    leaving = asyncio.create_task(post(url, chat(question), headers=headers))
    await until(lambda: engine.raw and engine.questions[-1] == question)
    leaving.cancel()
    await until(lambda: engine.keys and engine.keys[-1] == f"Bearer {question}")


def test_an_abort_goes_with_the_key_of_its_request_and_a_refusal_is_told_once() -> None:
    told: list[str] = []

    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        engine.abort_status = 401
        async with gateway_before(engine, kind="sglang:", log=told.append) as (url, _):
            for question in ("one", "two"):
                await leave(url, engine, question)

    asyncio.run(ask())
    answers, refused = told
    assert "HTTP 401: no key; it continues requests whose clients have disconnected" in refused
    assert answers.endswith("answers: SGLang, gets priorities")


@pytest.mark.parametrize("is_ending", [False, True])
def test_an_engine_that_does_not_listen_to_aborts_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, is_ending: bool
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_client.ABORT_S", 3600 if is_ending else 0.01)
    monkeypatch.setattr(
        "metropolis.gateway.engine_client.LAST_ABORTS_S", 0.01 if is_ending else 3600
    )

    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        engine.listens.clear()
        async with asyncio.timeout(20), gateway_before(engine, kind="sglang:") as (url, gateway):
            await leave(url, engine, "why")
            if not is_ending:
                await until(lambda: not gateway.engines[0]._aborts)

    asyncio.run(ask())
