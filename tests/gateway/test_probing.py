"""Detection of engines' kinds, models, priorities and KV cache sizes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from metropolis.cli.gateway import token_range
from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.priority_quantizer import LAST
from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.test_command import running
from tests.gateway.test_priorities import at_step
from tests.gateway.test_server import post

CACHE = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="150"%s} 1.0'
IN_ORDER = {
    "enable_priority_scheduling": True,
    "schedule_low_priority_values_first": True,
    "max_total_num_tokens": 2400,
}


def vllm(cache_info: str = "", *, takes_priorities: bool = True) -> StubEngine:
    engine = StubEngine("vllm")
    engine.cache_info, engine.takes_priorities = cache_info, takes_priorities
    return engine


def sglang(**info: Any) -> StubEngine:
    engine = StubEngine("sglang")
    engine.server_info = info
    return engine


@pytest.mark.parametrize(
    ("engine", "kind", "said", "told"),
    [
        (vllm, "", "vLLM, gets priorities", [7]),
        (
            lambda: vllm(takes_priorities=False),
            "vllm:",
            "vLLM, gets no priorities, because it refuses them: start it with "
            "--scheduling-policy priority",
            [None],
        ),
        (
            lambda: sglang(**IN_ORDER),
            "",
            "SGLang, gets priorities, KV cache of 2,400 tokens",
            [0],
        ),
        (
            lambda: sglang(enable_priority_scheduling=True),
            "sglang:",
            "SGLang, gets priorities, high ones first",
            [LAST],
        ),
        (
            lambda: sglang(enable_priority_scheduling=False),
            "sglang:",
            "SGLang, gets no priorities, because it was started without "
            "--enable-priority-scheduling",
            [None],
        ),
        (
            lambda: StubEngine("sglang"),
            "",
            "SGLang, gets no priorities, because it does not report its settings: use "
            "sglang:URL if low values go first",
            [None],
        ),
    ],
)
def test_priorities_are_told_as_the_engine_takes_them(
    engine: Any, kind: str, said: str, told: list[int | None]
) -> None:
    news: list[str] = []

    async def ask() -> None:
        stub = engine()
        options = {"policy": StepFirst(), "kind": kind, "log": news.append}
        async with gateway_before(stub, **options) as (url, _):
            await post(url, chat("x"), headers=at_step(7))
            assert [body.get("priority") for body in stub.bodies] == told

    asyncio.run(ask())
    assert news[0].partition(" answers: ")[2] == said


@pytest.mark.parametrize("kind", ["", "vllm:"])
def test_a_clients_own_priority_beats_no_policy(kind: str) -> None:
    async def ask() -> None:
        engine = vllm()
        async with gateway_before(engine, policy=StepFirst(), kind=kind) as (url, _):
            headers = at_step(7) | {"X-Vllm-Priority": "-99"}
            await post(url, chat("x", priority=-99), headers=headers)
            assert engine.bodies[0]["priority"] == 7
            assert engine.headers[0]["X-Vllm-Priority"] == "7"

    asyncio.run(ask())


def test_a_clients_header_goes_to_no_other_engine_either() -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine) as (url, _):
            await post(url, chat("x"), headers={"x-vllm-PRIORITY": "-99"})
            assert "x-vllm-priority" not in {name.lower() for name in engine.headers[0]}

    asyncio.run(ask())


def test_the_dispatcher_learns_each_kv_cache() -> None:
    made: list[LeastLoaded] = []

    def dispatcher(fleet: Fleet) -> LeastLoaded:
        made.append(LeastLoaded(fleet))
        return made[0]

    async def ask() -> None:
        engines = [
            vllm(CACHE % ',kv_cache_size_tokens="9600"'),
            vllm(CACHE % ""),
            vllm("vllm:cache_config_info{} 1.0"),
            sglang(max_total_num_tokens=-1),
        ]
        async with gateway_before(*engines, dispatcher=dispatcher) as (_, gateway):
            unknown = 100_000
            assert gateway.scheduling.capacity_tokens == [9600, 2400, unknown, unknown]
            await engines[1].kill()
            await until(lambda: not gateway.scheduling.is_up[1])
            engines[1].cache_info = CACHE % ',kv_cache_size_tokens="100"'
            await engines[1].start()
            await until(lambda: gateway.scheduling.is_up[1])
            assert made[0].fleet.instances[1].capacity_tokens == 100

    asyncio.run(ask())


@pytest.mark.parametrize(("options", "tokens"), [((), 2400), (("--capacity-tokens", "77"), 77)])
def test_the_command_says_which_kv_cache_it_takes(options: tuple[str, ...], tokens: int) -> None:
    async def ask() -> None:
        engine = vllm(CACHE % "")
        lines: list[str] = []
        async with running("--engine", await engine.start(), *options, lines=lines) as (_, process):
            process.terminate()
            _, errors = await process.communicate()
            assert "vLLM, gets priorities, KV cache of 2,400 tokens" in errors.decode()
        await engine.kill()
        (line,) = lines
        assert line.endswith(f"1 of 1 engines up, assumed KV cache: {tokens:,} tokens each\n")

    asyncio.run(ask())


def test_different_kv_caches_are_a_range() -> None:
    assert token_range([9600, 2400, 4800]) == "2,400 to 9,600"
    assert token_range([2400, 2400]) == "2,400"


def test_one_model_by_its_name() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.models = ["org/tiny", "b"]
        async with gateway_before(engine) as (url, _), aiohttp.ClientSession() as session:
            for name, status in (("org/tiny", 200), ("b", 200), ("c", 404)):
                async with session.get(f"{url}/v1/models/{name}") as answer:
                    assert answer.status == status
                    model = await answer.json()
                    if status == 200:
                        assert model["id"] == name
                    else:
                        assert model["error"]["code"] == "model_not_found"
                        assert "'c'" in model["error"]["message"]

    asyncio.run(ask())
