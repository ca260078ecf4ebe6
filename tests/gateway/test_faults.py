"""Requests of every kind under preemptions and engine losses: clients notice neither."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import gateway_before, until
from tests.gateway.models import Model, ModelEngine
from tests.gateway.test_preemption import Impatient, at_step
from tests.gateway.test_server import PATHS, post
from tests.gateway.test_stream_state import bare, read

REQUESTS = 60
PIECES = 10
"""Pieces that the engines send between two requests: fewer than an answer has."""


def random_body(random: Random, number: int) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "tiny", "stream": random.random() < 0.5}
    if random.random() < 0.5:
        body["messages"] = [{"role": "user", "content": f"q{number}"}]
    else:
        body |= {"prompt": f"q{number}:", "max_tokens": random.randrange(1, 45)}
        if not body["stream"] and random.random() < 0.5:
            body["logprobs"] = 0
    if random.random() < 0.3:
        body["stop"] = random.choice(["END", "a b"])
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    return body


def same(answer: bytes, body: dict[str, Any], model: Model) -> bool:
    """Whether `answer` equals that of one undisturbed engine."""
    if body["stream"]:
        return read(answer) == read(b"".join(model.events(body)))
    return bare(json.loads(answer)) == bare(model.whole(body))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_preempted_or_lost_the_answer_is_that_of_one_engine(seed: int) -> None:
    random, model = Random(seed), Model()
    engines = [ModelEngine(model) for _ in range(2)]
    for engine in engines:
        engine.piece_s = 0.002

    async def one(url: str, number: int) -> None:
        """Send a request that ranks before all earlier ones."""
        body = random_body(random, number)
        path = PATHS["prompt" in body]
        status, answer, headers = await post(
            url, body, path=path, headers=at_step(REQUESTS - number)
        )
        assert status == 200
        assert headers["Content-Type"].startswith(
            "text/event-stream" if body["stream"] else "application/json"
        )
        assert same(answer, body, model), body

    async def ask() -> None:
        async with gateway_before(*engines, policy=Impatient(), at_once=2, kind="vllm:") as (
            url,
            gateway,
        ):
            asked: list[asyncio.Task[None]] = []
            losses = random.sample(range(1, REQUESTS), 4)

            def is_due() -> bool:
                sent = sum(engine.sent for engine in engines)
                return sent >= PIECES * len(asked) or all(one.done() for one in asked)

            for number in range(REQUESTS):
                await until(is_due)
                asked.append(asyncio.create_task(one(url, number)))
                if number in losses:
                    await until(lambda: any(engine.running for engine in engines))
                    engine = random.choice([engine for engine in engines if engine.running])
                    await engine.kill()
                    await asyncio.sleep(0.05)
                    await engine.start()
            await asyncio.gather(*asked)
            assert gateway.metrics.preempted > 5
            assert gateway.metrics.retried > 0
            assert gateway.scheduling.in_flight == [0, 0]
            assert not gateway.scheduling.preemptible

    asyncio.run(ask())


def test_chats_outlive_their_engine_under_any_policy() -> None:
    model = Model(groups=False)
    engines = [ModelEngine(model), ModelEngine(model)]
    engines[0].pieces = asyncio.Semaphore(4)
    bodies = [{**random_body(Random(n), n), "stream": True} for n in range(99)]
    body = next(b for b in bodies if "messages" in b and len([*model.events(b)]) > 20)

    async def ask() -> None:
        async with gateway_before(*engines, policy=StepFirst(), kind="vllm:") as (url, gateway):
            asked = asyncio.create_task(post(url, body))
            await until(lambda: engines[0].sent == 4)
            await asyncio.sleep(0.05)
            await engines[0].kill()
            status, answer, _ = await asked
            assert status == 200
            assert same(answer, body, model)
            assert engines[1].bodies[0]["continue_final_message"]
            assert gateway.metrics.retried == 1
            await engines[0].start()

    asyncio.run(ask())
