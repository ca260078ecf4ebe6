"""The engine over HTTP: for OpenAI's client, behind the gateway, and when things go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from metropolis.policy.fixed import StepFirst
from metropolis.reuse.base import CacheReuse
from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import PrefixReuse
from metropolis.torch_engine.engine import Engine
from metropolis.torch_engine.metrics import Metrics
from metropolis.torch_engine.server import Server
from tests.gateway.engines import gateway_before, until
from tests.gateway.real_engine import RealEngine
from tests.gateway.test_priorities import at_step
from tests.torch_engine.served_models import variants
from tests.torch_engine.test_engine import AMPLE, expected_text, plan, words

BASE, CHAT = variants("base", "chat")
PLANS = DroidSpeak([plan("base", "chat")])
STORY = "It was a dark and stormy night. " * 40
"""More than one of the pieces by which the gateway compares prompts."""
SCHEMA = {
    "type": "object",
    "properties": {"line": {"type": "string", "maxLength": 5}, "ends": {"type": "boolean"}},
    "required": ["line", "ends"],
    "additionalProperties": False,
}


@asynccontextmanager
async def served(reuse: CacheReuse = PLANS, at_once: int = 8) -> AsyncIterator[tuple[str, Engine]]:
    metrics = Metrics()
    engine = Engine([BASE, CHAT], reuse, AMPLE, at_once, on_prefill=metrics.note_prefill)
    server = Server(engine, metrics)
    try:
        yield await server.start("127.0.0.1", 0), engine
    finally:
        await server.close()


def chat(model: str, question: str, **fields: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": STORY},
        {"role": "user", "content": question},
    ]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8, **fields}


def prompt_of(question: str) -> list[int]:
    return words(f"<|begin|>system: {STORY}\nuser: {question}\nassistant: ")


def with_client(
    use: Callable[[openai.AsyncOpenAI, Engine], Awaitable[None]], reuse: CacheReuse = PLANS
) -> None:
    async def run() -> None:
        async with (
            served(reuse) as (url, engine),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            await use(client, engine)

    asyncio.run(run())


async def metric(url: str, name: str, **labels: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_answers_are_those_of_the_model() -> None:
    async def use(client: openai.AsyncOpenAI, _: Engine) -> None:
        expected = expected_text(BASE, prompt_of("Who?"), 8)
        whole = await client.chat.completions.create(**chat("base", "Who?"))
        assert whole.choices[0].message.content == expected
        assert whole.usage
        assert whole.usage.prompt_tokens == len(prompt_of("Who?"))
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (8, "length")
        stream = await client.chat.completions.create(
            **chat("base", "Who?"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == expected
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage
        assert chunks[-1].usage.completion_tokens == 8
        plain = await client.completions.create(
            model="chat", prompt="Once", max_tokens=5, temperature=0
        )
        assert plain.choices[0].text == expected_text(CHAT, words("Once"), 5)
        ids = await client.completions.create(
            model="chat", prompt=words("Once"), max_tokens=5, temperature=0
        )
        assert ids.choices[0].text == plain.choices[0].text
        assert [model.id for model in (await client.models.list()).data] == ["base", "chat"]

    with_client(use)


def test_answers_follow_a_schema() -> None:
    async def use(client: openai.AsyncOpenAI, _: Engine) -> None:
        for seed in range(3):
            answer = await client.chat.completions.create(
                model="base",
                messages=[{"role": "user", "content": "Say"}],
                seed=seed,
                max_tokens=100,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA},
                },
            )
            content = json.loads(answer.choices[0].message.content or "")
            assert isinstance(content["line"], str)
            assert isinstance(content["ends"], bool)
            assert answer.choices[0].finish_reason == "stop"

    with_client(use)


def test_many_at_a_time_are_answered_as_alone() -> None:
    async def use(client: openai.AsyncOpenAI, _: Engine) -> None:
        questions = [f"{number}?" for number in range(12)]
        answers = await asyncio.gather(
            *(client.chat.completions.create(**chat("base", each)) for each in questions)
        )
        for question, answer in zip(questions, answers, strict=True):
            expected = expected_text(BASE, prompt_of(question), 8)
            assert answer.choices[0].message.content == expected

    with_client(use, PrefixReuse())


@pytest.mark.parametrize("tells_engine", [True, False])
def test_behind_the_gateway_the_receiver_starts_from_the_senders_cache(
    tells_engine: bool,
) -> None:
    """This holds whether the gateway or the engine has the plan."""

    async def ask() -> None:
        async with served() as (engine_url, _):
            reuse = PLANS if tells_engine else None
            async with (
                gateway_before(RealEngine(engine_url), reuse=reuse) as (url, gateway),
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
            ):
                assert gateway.engines[0].takes_reuse
                await client.chat.completions.create(**chat("base", "Who?"))
                stream = await client.chat.completions.create(**chat("chat", "Where?"), stream=True)
                assert [chunk async for chunk in stream]
                shared = len(prompt_of("")) - len("\nassistant: ")
                for at, name in (
                    (engine_url, "metropolis_engine_reused_tokens_total"),
                    (url, "metropolis_reused_tokens_total"),
                ):
                    assert await metric(at, name) >= shared
                tokens = await metric(engine_url, "metropolis_engine_reused_tokens_total")
                per_token = BASE.kv_bytes_per_token * 2 // 5 + BASE.input_bytes_per_token
                for at, name in (
                    (engine_url, "metropolis_engine_reused_bytes_total"),
                    (url, "metropolis_reused_bytes_total"),
                ):
                    assert await metric(at, name) == tokens * per_token

    asyncio.run(ask())


def test_clients_that_leave_free_the_engine() -> None:
    async def ask() -> None:
        async with served() as (url, engine), aiohttp.ClientSession() as session:
            body = chat("base", "Who?", max_tokens=2500, ignore_eos=True, stream=True)
            answer = await session.post(f"{url}/v1/chat/completions", json=body)
            await answer.content.readany()
            assert engine.running == 1
            answer.close()
            await until(lambda: engine.is_idle)
            assert await metric(url, "metropolis_engine_requests_total", finish="cancelled") == 1

    asyncio.run(ask())


def test_a_request_is_aborted_by_its_id() -> None:
    async def ask() -> None:
        async with served() as (url, engine), aiohttp.ClientSession() as session:
            body = chat("base", "Who?", max_tokens=2500, ignore_eos=True, rid="run-7")
            answering = asyncio.ensure_future(session.post(f"{url}/v1/chat/completions", json=body))
            await until(lambda: engine.running == 1)
            await session.post(f"{url}/abort_request", json={"rid": "run-"})
            answer = await (await answering).json()
            assert answer["choices"][0]["finish_reason"] == "abort"
            assert engine.is_idle

    asyncio.run(ask())


def test_the_gateways_policy_orders_the_engines_queue() -> None:
    async def ask() -> None:
        async with (
            served(at_once=1) as (engine_url, engine),
            gateway_before(RealEngine(engine_url), policy=StepFirst()) as (url, _),
            aiohttp.ClientSession() as session,
        ):
            order: list[int] = []

            async def one(step: int, most: int) -> None:
                body = chat("base", f"{step}", max_tokens=most, ignore_eos=True)
                path = f"{url}/v1/chat/completions"
                async with session.post(path, json=body, headers=at_step(step)) as answer:
                    await answer.read()
                order.append(step)

            tasks = [asyncio.ensure_future(one(0, 60))]
            await until(lambda: engine.running == 1)
            tasks += [asyncio.ensure_future(one(step, 1)) for step in (7, 3, 5)]
            await asyncio.gather(*tasks)
            assert order == [0, 3, 5, 7]

    asyncio.run(ask())
