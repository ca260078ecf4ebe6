"""The gateway with a real vLLM that serves a tiny random model, one request at a time."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.backend import LocalGateway
from metropolis.gateway.routes import MESSAGES, RESPONSES
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.base import Completion
from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import gateway_before, until, until_reported
from tests.gateway.real_engine import ENDLESS, RealEngine, content_of, order_of, preempted
from tests.gateway.route_engine import asked
from tests.gateway.test_priorities import at_step
from tests.gateway.test_server import PATHS, post
from tests.llm.fakes import request
from tests.llm.test_real_sglang import metric

GREEDY = {"model": "tiny", "temperature": 0.0, "max_tokens": 12}
BODIES: dict[str, dict[str, Any]] = {
    PATHS[0]: GREEDY | {"messages": [{"role": "user", "content": "hello"}]},
    PATHS[1]: GREEDY | {"prompt": "def f("},
    MESSAGES: GREEDY | {"messages": [{"role": "user", "content": "hello"}]},
    RESPONSES: {"model": "tiny", "temperature": 0.0, "max_output_tokens": 12, "input": "hello"},
}


def text_of(path: str, answer: bytes) -> Any:
    """Return the parts of an answer that do not differ between requests."""
    whole = json.loads(answer)
    if path in PATHS:
        return content_of(answer)
    if path == MESSAGES:
        return whole["content"], whole["usage"]
    return whole["output"][0]["content"], whole["usage"]


@pytest.mark.parametrize("path", BODIES)
def test_answers_are_those_of_the_engine(vllm_url: str, path: str) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(vllm_url), policy=StepFirst()) as (url, gateway):
            direct, through = [
                await post(base, BODIES[path], path=path, headers=at_step(3))
                for base in (vllm_url, url)
            ]
            assert direct[0] == through[0] == 200
            assert text_of(path, direct[1])[0] == text_of(path, through[1])[0]
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())


def test_it_is_recognised_and_tells_its_memory(vllm_url: str) -> None:
    news: list[str] = []

    async def ask() -> None:
        async with gateway_before(RealEngine(vllm_url), log=news.append) as (_, gateway):
            assert gateway.scheduling.capacity_tokens == [1 << 19]  # 1 GiB
            assert gateway.engines[0].is_known

    asyncio.run(ask())
    assert news == [
        f"the engine at {vllm_url} answers: vLLM, gets priorities, KV cache of 524,288 tokens"
    ]


@pytest.mark.parametrize("path", [PATHS[1], MESSAGES])
def test_the_policy_reaches_into_the_engines_queue_and_clients_do_not(
    vllm_url: str, path: str
) -> None:
    """All requests are at the engine, which runs one at a time."""

    def ask(step: int) -> tuple[str, dict[str, Any], dict[str, str]]:
        body = BODIES[path] | {"max_tokens": ENDLESS, "ignore_eos": True, "priority": -step}
        return path, body, at_step(step) | {"X-Vllm-Priority": str(-step)}

    async def order() -> list[int]:
        async with gateway_before(RealEngine(vllm_url), policy=StepFirst()) as (url, gateway):
            return await order_of(
                (80, 20, 50), url, gateway,
                lambda: metric(vllm_url, "vllm:num_requests_waiting"), ask,
            )  # fmt: skip

    assert asyncio.run(order()) == [20, 50, 80]


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_answer_is_preempted_and_taken_up_again(vllm_url: str, stream: bool) -> None:
    undisturbed, text = asyncio.run(preempted(vllm_url, PATHS[1], BODIES[PATHS[1]], stream))
    assert text == undisturbed


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_continued(vllm_url: str, stream: bool) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(vllm_url)) as (url, gateway):
            body = BODIES[RESPONSES] | {"stream": stream}
            _, answer, _ = await post(url, body, path=RESPONSES)
            first = (
                json.loads(answer.split(b"data: ")[1].split(b"\n")[0])["response"]
                if stream
                else json.loads(answer)
            )
            assert len(gateway.responses) == 1
            again = BODIES[RESPONSES] | {"previous_response_id": first["id"]}
            status, answer, _ = await post(url, again, path=RESPONSES)
            assert status == 200
            assert json.loads(answer)["previous_response_id"] == first["id"]
            assert len(gateway.programs) == 1
            async with asked(url, "GET", f"{RESPONSES}/{first['id']}") as kept:
                assert (await kept.json())["id"] == first["id"]

    asyncio.run(ask())


def test_a_client_that_leaves_frees_the_engine(vllm_url: str) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(vllm_url)) as (url, gateway):
            endless = BODIES[PATHS[1]] | {"max_tokens": 8000, "ignore_eos": True}
            leaving = asyncio.create_task(post(url, endless, path=PATHS[1]))
            await until(lambda: gateway.scheduling.in_flight == [1])
            leaving.cancel()
            await until(lambda: gateway.metrics.aborted == 1)
            await until_reported(partial(metric, vllm_url, "vllm:num_requests_running"), 0)
            assert (await post(url, BODIES[PATHS[1]], path=PATHS[1]))[0] == 200

    asyncio.run(ask())


def test_tokens_pass_and_what_it_lacks_is_its_own_404(vllm_url: str) -> None:
    async def ask() -> None:
        async with gateway_before(RealEngine(vllm_url)) as (url, _):
            for path, body in (("/tokenize", {"prompt": "def f("}), ("/generate", {"text": "a"})):
                direct, through = [
                    await post(base, {"model": "tiny"} | body, path=path)
                    for base in (vllm_url, url)
                ]
                assert direct[:2] == through[:2]
            assert through[0] == 404
            async with asked(url, "GET", "/v1/models/tiny") as model:
                assert (await model.json())["owned_by"] == "vllm"

    asyncio.run(ask())


@pytest.mark.parametrize("through_gateway", [False, True])
def test_an_answer_goes_on_to_its_length(vllm_url: str, through_gateway: bool) -> None:
    async def ask() -> Completion:
        backend = (
            LocalGateway(
                [f"vllm:{vllm_url}"], StepFirst(), RoundRobin(Fleet.uniform(1, 1000, 10.0))
            )
            if through_gateway
            else Compatible(vllm_url, vllm=True)
        )
        await backend.check()
        answer = await backend.complete(request(max_tokens=40, ignore_eos=True))
        await backend.close()
        return answer

    answer = asyncio.run(ask())
    assert (answer.output_tokens, answer.finish_reason) == (40, "length")
