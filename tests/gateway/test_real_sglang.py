"""The gateway with a real SGLang that serves a tiny random model, one request at a time."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import aiohttp
import openai
import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.backend import LocalGateway
from metropolis.gateway.routes import GENERATE, MESSAGES
from metropolis.llm.check import check_backend
from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import gateway_before, until, until_reported
from tests.gateway.real_engine import ENDLESS, RealEngine, content_of, order_of, preempted
from tests.gateway.test_preemption import Impatient, at_step
from tests.gateway.test_server import PATHS, post
from tests.llm.test_real_sglang import metric

ASKED: dict[str, dict[str, Any]] = {
    PATHS[0]: {"messages": [{"role": "user", "content": "hello"}]},
    PATHS[1]: {"prompt": "def f("},
}
GREEDY = {"model": "tiny", "temperature": 0.0, "max_tokens": 12}


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_those_of_the_engine(sglang_url: str, path: str) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(sglang_url)) as (url, gateway):
            direct, through = [
                await post(base, GREEDY | ASKED[path], path=path) for base in (sglang_url, url)
            ]
            assert direct[0] == through[0] == 200
            assert content_of(direct[1]) == content_of(through[1])
            assert content_of(through[1])[1] == 12
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())


def test_the_openai_client_streams(sglang_url: str) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(sglang_url)) as (url, _):
            body: Any = GREEDY | ASKED[PATHS[0]]
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
            whole = await client.chat.completions.create(**body)
            stream = await client.chat.completions.create(**body, stream=True)
            pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert len(pieces) > 3
            assert "".join(pieces) == whole.choices[0].message.content
            await client.close()

    asyncio.run(ask())


def test_the_policy_reaches_into_the_engines_queue(sglang_url: str) -> None:
    """All requests are at the engine, which runs one at a time."""

    def ask(step: int, tokens: int = ENDLESS) -> tuple[str, dict[str, Any], dict[str, str]]:
        body = GREEDY | ASKED[PATHS[1]] | {"max_tokens": tokens, "ignore_eos": True}
        return PATHS[1], body, at_step(step)

    async def order() -> list[int]:
        real = RealEngine(sglang_url)
        async with gateway_before(real, policy=StepFirst(), kind="sglang:") as (url, gateway):
            for step in range(0, 90, 10):  # so that the gateway has seen such ranks
                path, body, headers = ask(step, 1)
                assert (await post(url, body, path=path, headers=headers))[0] == 200
            return await order_of(
                (80, 20, 50), url, gateway,
                lambda: metric(sglang_url, "sglang:num_queue_reqs"), ask,
            )  # fmt: skip

    assert asyncio.run(order()) == [20, 50, 80]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_aborted_in_the_engine(sglang_url: str, stream: bool) -> None:
    before = metric(sglang_url, "sglang:num_aborted_requests_total")

    async def ask() -> None:
        async with gateway_before(RealEngine(sglang_url)) as (url, gateway):
            endless = GREEDY | ASKED[PATHS[1]] | {"max_tokens": 6000, "ignore_eos": True}
            endless["stream"] = stream
            leaving = asyncio.create_task(post(url, endless, path=PATHS[1]))
            await until_reported(partial(metric, sglang_url, "sglang:num_running_reqs"), 1)
            leaving.cancel()
            await until(lambda: gateway.metrics.aborted == 1)
            status, *_ = await post(url, GREEDY | ASKED[PATHS[1]], path=PATHS[1])
            assert status == 200  # it got the engine's only place

    asyncio.run(ask())
    assert metric(sglang_url, "sglang:num_aborted_requests_total") == before + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_long_answer_is_preempted_and_taken_up_again(
    sglang_url: str, path: str, stream: bool
) -> None:
    undisturbed, text = asyncio.run(preempted(sglang_url, path, GREEDY | ASKED[path], stream))
    if path == PATHS[1]:  # chats resume from text, whose tokens differ with a random model
        assert text == undisturbed


@pytest.mark.parametrize("fields", [{}, {"stop": "e"}, {"logprobs": 1}])
@pytest.mark.parametrize("path", PATHS)
def test_a_joined_answer_is_that_of_the_engine(
    sglang_url: str, path: str, fields: dict[str, Any]
) -> None:
    """The engine streams, and no request is preempted."""
    body = GREEDY | ASKED[path] | fields
    if path == PATHS[0] and "logprobs" in fields:
        body["logprobs"] = True

    async def ask() -> None:
        async with gateway_before(RealEngine(sglang_url), policy=Impatient()) as (url, _):
            direct, joined = [
                json.loads((await post(base, body, path=path))[1]) for base in (sglang_url, url)
            ]
            assert joined["choices"] == direct["choices"]
            for name in ("object", "model"):
                assert joined[name] == direct[name]
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert joined["usage"][name] == direct["usage"][name]

    asyncio.run(ask())


def test_in_a_runs_process_it_keeps_a_backends_promises(sglang_url: str) -> None:
    async def ask() -> None:
        backend = LocalGateway(
            [sglang_url], StepFirst(), LeastLoaded(Fleet.uniform(1, 40_000, 10.0))
        )
        await check_backend(backend)
        await backend.close()

    asyncio.run(ask())


def test_an_error_is_passed_on(sglang_url: str) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(sglang_url)) as (url, _), aiohttp.ClientSession() as s:
            body = GREEDY | ASKED[PATHS[1]] | {"max_tokens": 50_000}
            async with s.post(url + PATHS[1], json=body) as answer:
                assert answer.status == 400
            async with s.get(f"{url}/v1/models") as answer:
                assert (await answer.json())["data"][0]["owned_by"] == "sglang"

    asyncio.run(ask())


def test_a_bare_address_tells_priorities_and_memory(sglang_url: str) -> None:
    news: list[str] = []

    async def ask() -> None:
        async with gateway_before(RealEngine(sglang_url), log=news.append) as (url, gateway):
            assert gateway.scheduling.capacity_tokens == [40_000]
            body = {"text": "def f(", "sampling_params": {"temperature": 0, "max_new_tokens": 12}}
            direct, through = [await post(base, body, path=GENERATE) for base in (sglang_url, url)]
            assert direct[0] == through[0] == 200
            assert json.loads(direct[1])["text"] == json.loads(through[1])["text"]
            assert json.loads(through[1])["meta_info"]["id"].startswith("gateway-")
            messages = {"model": "tiny", "max_tokens": 5} | ASKED[PATHS[0]]
            status, answer, _ = await post(url, messages, path=MESSAGES)
            assert (status, json.loads(answer)["usage"]["output_tokens"]) == (200, 5)
            async with aiohttp.ClientSession() as s, s.get(f"{url}/get_server_info") as answer:
                assert (await answer.json())["max_total_num_tokens"] == 40_000

    asyncio.run(ask())
    assert news[0].endswith("SGLang, gets priorities, KV cache of 40,000 tokens")
