"""Requests that are resumed on another engine, after preemption or the loss of theirs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from metropolis.policy.base import ServedRequest
from metropolis.policy.fixed import Fcfs, StepFirst
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.test_server import PATHS, post


class Impatient(StepFirst):
    preempts = True


def at_step(step: int) -> dict[str, str]:
    return {"X-Metropolis-Step": str(step)}


def counted(name: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": name, "max_tokens": tokens, "stream": True, **fields}


def text_of(answer: bytes) -> str:
    *events, end = answer.removesuffix(b"\n\n").split(b"\n\n")
    assert end == b"data: [DONE]"
    return "".join(json.loads(event[5:])["choices"][0]["text"] for event in events)


def words(tokens: int) -> str:
    return "".join(f" {n}" for n in range(tokens))


def test_a_policy_that_preempts_lets_the_short_pass_the_long() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.piece_s = 0.01
        async with gateway_before(engine, policy=Impatient(), at_once=1) as (url, gateway):
            order: list[str] = []

            async def one(name: str, tokens: int) -> str:
                body = counted(name, tokens)
                status, answer, _ = await post(url, body, path=PATHS[1], headers=at_step(tokens))
                assert status == 200
                order.append(name)
                return text_of(answer)

            long = asyncio.create_task(one("long", 60))
            await until(lambda: engine.raw)
            short = asyncio.create_task(one("short", 3))
            assert await short == words(3)
            assert await long == words(60)
            assert order == ["short", "long"]
            assert gateway.metrics.preempted == 1
            assert [body["prompt"].split()[0] for body in engine.bodies] == [
                "long",
                "short",
                "long",
            ]
            assert engine.bodies[2]["max_tokens"] < 60
            assert gateway.scheduling.in_flight == [0]
            assert not gateway.scheduling.preemptible

    asyncio.run(ask())


class Busy(StubEngine):
    """Refuses the rest of answers with `refusal`, `refusals` times."""

    def __init__(self, refusal: int, refusals: int) -> None:
        super().__init__()
        self.piece_s = 0.01
        self.refusal, self.refusals = refusal, refusals

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if " " in (await request.json())["prompt"] and self.refusals:
            self.refusals -= 1
            return web.Response(status=self.refusal)
        return await super()._answer(request)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", [429, 503])
def test_the_rest_of_an_answer_waits_for_a_busy_engine(
    monkeypatch: pytest.MonkeyPatch, stream: bool, refusal: int
) -> None:
    monkeypatch.setattr("metropolis.gateway.exchange_driver.BUSY_S", 0.001)

    async def ask() -> None:
        engine = Busy(refusal, 3)
        async with gateway_before(engine, policy=Impatient(), at_once=1) as (url, gateway):
            body = counted("long", 20, stream=stream)
            long = asyncio.create_task(post(url, body, path=PATHS[1], headers=at_step(9)))
            await until(lambda: gateway.scheduling.preemptible)
            await post(url, counted("short", 1), path=PATHS[1])
            status, answer, _ = await long
            assert engine.refusals == 0
            text = text_of(answer) if stream else json.loads(answer)["choices"][0]["text"]
            assert (status, text) == (200, words(20))
            assert gateway.scheduling.is_up == [True]
            await until(lambda: gateway.scheduling.in_flight == [0])

    asyncio.run(ask())


def test_what_is_learned_of_a_request_is_all_the_time_that_engines_had_it() -> None:
    now_s = 0.0
    learned: list[ServedRequest] = []

    class Learning(Impatient):
        def completed(self, served: ServedRequest) -> None:
            learned.append(served)

    async def ask() -> None:
        nonlocal now_s
        engine = StubEngine()
        engine.pieces = asyncio.Semaphore(2)
        async with gateway_before(engine, policy=Learning(), at_once=1) as (url, gateway):
            gateway.scheduling.clock = lambda: now_s
            long = asyncio.create_task(
                post(url, counted("long", 9), path=PATHS[1], headers=at_step(9))
            )
            await until(lambda: gateway.scheduling.preemptible)
            now_s = 10.0
            short = asyncio.create_task(post(url, counted("short", 1), path=PATHS[1]))
            await until(lambda: len(engine.raw) == 2)
            now_s = 30.0
            engine.pieces.release()
            engine.pieces.release()
            engine.pieces.release()
            await short
            await until(lambda: len(engine.raw) == 3)
            now_s = 35.0
            for _ in range(20):
                engine.pieces.release()
            await long

    asyncio.run(ask())
    short, long = learned
    assert (short.started_s, short.latency_s) == (10.0, 20.0)
    assert (long.started_s, long.latency_s) == (20.0, 15.0)


def test_other_requests_are_let_finish() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.piece_s = 0.05
        async with gateway_before(engine, policy=Impatient(), at_once=1) as (url, gateway):
            long = asyncio.create_task(post(url, chat("long", stream=True), headers=at_step(9)))
            await until(lambda: engine.raw)
            await post(url, counted("short", 1), path=PATHS[1])
            assert long.done()
            assert gateway.metrics.preempted == 0

    asyncio.run(ask())


def test_a_plain_completion_outlives_its_engine() -> None:
    async def ask() -> None:
        engines = [StubEngine(), StubEngine()]
        engines[0].pieces = asyncio.Semaphore(4)
        async with gateway_before(*engines, policy=Fcfs()) as (url, gateway):
            asked = asyncio.create_task(post(url, counted("p", 9), path=PATHS[1]))
            await until(lambda: engines[0].raw)
            await asyncio.sleep(0.05)
            await engines[0].kill()
            status, answer, _ = await asked
            assert (status, text_of(answer)) == (200, words(9))
            assert engines[1].bodies[0]["prompt"] == "p" + words(4)
            assert gateway.metrics.retried == 1
            await engines[0].start()

    asyncio.run(ask())


def test_clients_may_leave_while_a_preempted_stream_waits() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.piece_s = 0.01
        async with gateway_before(engine, policy=Impatient(), at_once=1) as (url, gateway):
            long = asyncio.create_task(
                post(url, counted("long", 6000), path=PATHS[1], headers=at_step(9))
            )
            await until(lambda: engine.sent)
            engine.open.clear()
            short = asyncio.create_task(post(url, counted("short", 1), path=PATHS[1]))
            await until(lambda: gateway.metrics.preempted == 1 and len(gateway.scheduling) == 1)
            long.cancel()
            await until(lambda: len(gateway.scheduling) == 0)
            engine.open.set()
            status, answer, _ = await short
            assert (status, text_of(answer)) == (200, words(1))
            await until(lambda: gateway.scheduling.in_flight == [0])
            assert gateway.metrics.aborted == 1

    asyncio.run(ask())


def test_who_leaves_an_answer_that_is_being_joined_frees_the_engine() -> None:
    async def ask() -> None:
        engine = StubEngine("sglang")
        engine.pieces = asyncio.Semaphore(3)
        async with gateway_before(engine, policy=Impatient(), at_once=1) as (url, gateway):
            body = counted("p", 9, stream=False)
            leaving = asyncio.create_task(post(url, body, path=PATHS[1]))
            await until(lambda: engine.sent == 3 and gateway.scheduling.preemptible)
            leaving.cancel()
            await until(lambda: engine.left == 1 and gateway.metrics.aborted == 1)
            assert gateway.scheduling.in_flight == [0]
            assert not gateway.scheduling.preemptible
            await until(lambda: engine.aborted == [engine.bodies[0]["rid"]])

    asyncio.run(ask())


def test_an_error_in_a_stream_that_is_joined_is_the_answer() -> None:
    error = {"error": {"message": "too long", "code": 400}}

    class Failing(StubEngine):
        def events(self, body: dict[str, Any]) -> list[bytes]:
            return [f"data: {json.dumps(error)}\n\n".encode(), b"data: [DONE]\n\n"]

    async def ask() -> None:
        engine = Failing()
        async with gateway_before(engine, policy=Impatient()) as (url, gateway):
            body = counted("p", 9, stream=False)
            status, answer, headers = await post(url, body, path=PATHS[1])
            assert (status, json.loads(answer)) == (400, error)
            assert headers["Content-Type"] == "application/json"
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())
