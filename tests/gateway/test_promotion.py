"""Speculative requests before the gateway: they go last until their agent-step is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.backend import LocalGateway
from metropolis.gateway.promotions import KEPT_S, PROGRAMS_MAX, Promotions
from metropolis.gateway.proxy import Gateway
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.base import Promoter, Request
from metropolis.llm.placement import placement_of
from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import StubEngine, gateway_before, until
from tests.gateway.test_server import post
from tests.llm.fakes import request

CLIENTS: dict[str, Callable[[str], Compatible | SGLang]] = {
    "http": Compatible,
    "sglang": SGLang,
    "openai": OpenAIClient,
}


@asynccontextmanager
async def backend_before(engine: StubEngine, kind: str) -> AsyncIterator[tuple[Promoter, Gateway]]:
    """A client of a gateway before `engine`, which gets one request at a time."""
    if kind in CLIENTS:
        async with gateway_before(engine, policy=StepFirst(), at_once=1) as (url, gateway):
            client = CLIENTS[kind](url)
            await client.check()
            yield client, gateway
            await client.close()
    else:
        dispatcher = LeastLoaded(Fleet.uniform(1, 100_000, 30.0))
        local = LocalGateway([await engine.start()], StepFirst(), dispatcher, at_once=1)
        await local.check()
        yield local, local.gateway
        await local.close()
        await engine.kill()


def asked(step: int, *, speculative: bool = False) -> Request:
    turns = ({"role": "user", "content": f"{step}"},)
    return request(step=step, messages=turns, prompt=None, speculative=speculative, agent=step)


@pytest.mark.parametrize("kind", [*CLIENTS, "in process"])
@pytest.mark.parametrize("is_promoted", [False, True])
def test_they_go_last_until_they_are_needed(kind: str, is_promoted: bool) -> None:
    async def run() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with backend_before(engine, kind) as (backend, gateway):
            assert isinstance(backend, Compatible | SGLang | LocalGateway)
            speculative = asked(2, speculative=True)
            calls = []
            for one in (asked(1), speculative, asked(3)):
                calls.append(asyncio.create_task(backend.complete(one)))
                await until(lambda: len(gateway.scheduling) == len(calls) - 1 and engine.raw)
            if is_promoted:
                backend.promote(speculative)
                await until(lambda: not gateway.promotions)
            engine.open.set()
            await asyncio.gather(*calls)
            assert engine.questions == (["1", "2", "3"] if is_promoted else ["1", "3", "2"])
            assert not gateway.promotions

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["http", "in process"])
def test_a_promotion_may_overtake_its_request(kind: str) -> None:
    async def run() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with backend_before(engine, kind) as (backend, gateway):
            assert isinstance(backend, Compatible | LocalGateway)
            calls = [asyncio.create_task(backend.complete(asked(1)))]
            await until(lambda: engine.raw)
            speculative = asked(2, speculative=True)
            backend.promote(speculative)
            program = placement_of(speculative).program
            assert program is not None
            await until(lambda: gateway.promotions.is_promoted(program))
            for one in (speculative, asked(3)):
                calls.append(asyncio.create_task(backend.complete(one)))
                await until(lambda: len(gateway.scheduling) == len(calls) - 1)
            engine.open.set()
            await asyncio.gather(*calls)
            assert engine.questions == ["1", "2", "3"]

    asyncio.run(run())


def test_old_promotions_are_forgotten() -> None:
    promotions = Promotions()
    for number in range(PROGRAMS_MAX + 2):
        promotions.promote(f"program {number}", 0.0 if number < 100 else 1.0)
    assert [promotions.is_promoted(f"program {number}") for number in (1, 2)] == [False, True]
    promotions.sweep(KEPT_S)
    assert [promotions.is_promoted(f"program {number}") for number in (99, 100)] == [False, True]


def test_a_cancelled_one_frees_its_place() -> None:
    async def run() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with backend_before(engine, "http") as (backend, gateway):
            assert isinstance(backend, Compatible)
            calls = [asyncio.create_task(backend.complete(asked(1, speculative=True)))]
            await until(lambda: engine.raw)
            calls.append(asyncio.create_task(backend.complete(asked(2))))
            await until(lambda: len(gateway.scheduling) == 1)
            calls[0].cancel()
            await until(lambda: len(engine.raw) == 2)  # the engine has the other one now
            engine.open.set()
            await calls[1]
            assert not gateway.promotions

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"", b"[]", b'{"program": 3}', b'{"program": "', b"\xff"])
def test_a_bad_promotion_gets_a_sentence(body: bytes) -> None:
    async def run() -> None:
        async with gateway_before(StubEngine()) as (url, _):
            status, answer, _ = await post(url, body, path="/v1/promote")
            assert status == 400
            assert b'the body should be {\\"program\\": a name}' in answer

    asyncio.run(run())


def test_the_promotion_of_an_unknown_program_changes_nothing() -> None:
    async def run() -> None:
        async with gateway_before(StubEngine()) as (url, _):
            status, answer, _ = await post(url, {"program": "nobody"}, path="/v1/promote")
            assert (status, answer) == (200, b'{"promoted": 0}')

    asyncio.run(run())
