"""Reuse of caches behind the gateway: what engines are told, and what they report."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from metropolis.gateway.probing import Traits
from metropolis.reuse.base import CacheReuse
from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import NoReuse
from tests.gateway.engines import StubEngine, gateway_before
from tests.gateway.test_server import post
from tests.reuse.test_choice import PLAN, Lending

CONTEXT = "It was a dark and stormy night. " * 200
TOLD = {"sender": "base", "recompute": [[2, 6]]}


def about_context(model: str, question: str, **fields: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": CONTEXT},
        {"role": "user", "content": question},
    ]
    return {"model": model, "messages": messages, **fields}


def engine_of(*models: str) -> StubEngine:
    engine = StubEngine("metropolis")
    engine.models = list(models)
    engine.model_fields = {"base": {"input_layers": [2, 4]}, "chat": {"is_receiver": True}}
    return engine


async def told(engine: StubEngine, reuse: CacheReuse | None, *bodies: dict[str, Any]) -> list[Any]:
    """What the engine was told for each of the bodies."""
    async with gateway_before(engine, reuse=reuse) as (url, _):
        for body in bodies:
            status, _, _ = await post(url, body)
            assert status == 200
        return [body.get("reuse") for body in engine.bodies]


def test_the_receiver_starts_from_the_context_that_the_sender_has_read() -> None:
    bodies = [
        about_context("chat", "Who?"),
        about_context("base", "Who?"),
        about_context("chat", "Where?", stream=True),
        about_context("base", "Where?"),
        {**about_context("chat", "Who?"), "messages": [{"role": "user", "content": "Another."}]},
    ]
    engine = engine_of("base", "chat")
    # The third request has its own model's cache of the context, from the first.
    assert asyncio.run(told(engine, DroidSpeak([PLAN]), *bodies)) == [None] * 5
    engine = engine_of("base", "chat")
    expected = [None, TOLD, None, None]
    assert asyncio.run(told(engine, DroidSpeak([PLAN]), *bodies[1:])) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"base": {"input_layers": [4]}, "chat": {"is_receiver": True}}, [[4, 6]]),
        ({"base": {"input_layers": []}, "chat": {"is_receiver": True}}, [[0, 6]]),
        ({"base": {"input_layers": [2, 4]}}, None),
    ],
    ids=str,
)
def test_engines_are_told_what_they_can_do(
    fields: dict[str, dict[str, Any]], expected: list[list[int]] | None
) -> None:
    """Bands begin where the engine keeps inputs, and only its receivers start from others."""
    engine = engine_of("base", "chat")
    engine.model_fields = fields
    bodies = [about_context("base", "Who?"), about_context("chat", "Who?")]
    [_, chosen] = asyncio.run(told(engine, DroidSpeak([PLAN], loss=0.15), *bodies))
    assert chosen == (expected and {"sender": "base", "recompute": expected})


@pytest.mark.parametrize("reuse", [None, NoReuse(), DroidSpeak([PLAN])])
def test_orders_of_clients_do_not_pass(reuse: CacheReuse | None) -> None:
    body = about_context("chat", "Who?", reuse={"sender": "base", "recompute": []})
    engine = engine_of("base", "chat")
    assert asyncio.run(told(engine, reuse, body)) == [None]
    assert "reuse" in engine.bodies[0]


@pytest.mark.parametrize("reuse", [None, NoReuse()])
def test_without_a_plan_nothing_is_told(reuse: CacheReuse | None) -> None:
    bodies = [about_context("base", "Who?"), about_context("chat", "Who?")]
    assert asyncio.run(told(engine_of("base", "chat"), reuse, *bodies)) == [None, None]


def test_other_engines_are_told_nothing() -> None:
    engine = StubEngine("vllm")
    engine.models = ["base", "chat"]
    bodies = [about_context("base", "Who?"), about_context("chat", "Who?")]
    assert asyncio.run(told(engine, DroidSpeak([PLAN]), *bodies)) == [None, None]


def test_an_engine_that_was_lost_holds_nothing() -> None:
    async def ask() -> None:
        engine = engine_of("base", "chat")
        async with gateway_before(engine, reuse=DroidSpeak([PLAN])) as (url, gateway):
            await post(url, about_context("base", "Who?"))
            await engine.kill()
            async with asyncio.timeout(30):
                while gateway.scheduling.is_up[0]:
                    await asyncio.sleep(0.05)
            await engine.start()
            await post(url, about_context("chat", "Who?"))
            assert engine.bodies[-1]["reuse"] is None

    asyncio.run(ask())


def test_metrics_count_what_engines_report() -> None:
    async def ask() -> str:
        engine = engine_of("base", "chat")
        engine.reports = {
            "X-Metropolis-Cached-Tokens": "7",
            "X-Metropolis-Reused-Tokens": "1500",
            "X-Metropolis-Reused-Bytes": "12ÿ",
        }
        async with gateway_before(engine, reuse=DroidSpeak([PLAN])) as (url, _):
            for stream in (False, True):
                await post(url, about_context("chat", "Who?", stream=stream))
            async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
                return await answer.text()

    text = asyncio.run(ask())
    assert "metropolis_cached_tokens_total{engine=" in text
    assert 'metropolis_reused_tokens_total{engine="http' in text
    counts = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(("metropolis_cached", "metropolis_reused"))
    }
    assert counts["metropolis_cached_tokens_total"] == 14
    assert counts["metropolis_reused_tokens_total"] == 3000
    assert "metropolis_reused_bytes_total" not in counts  # it was no number


def test_a_faulty_reuse_is_answered_with_its_name() -> None:
    async def ask() -> tuple[int, bytes]:
        reuse = Lending(lambda placed, cache: 1 / 0)
        async with gateway_before(engine_of("base", "chat"), reuse=reuse) as (url, _):
            await post(url, about_context("base", "Who?"))
            status, content, _ = await post(url, about_context("chat", "Who?"))
            return status, content

    status, content = asyncio.run(ask())
    assert status == 500
    assert b"the reuse Lending failed in choose" in content


def test_the_kind_of_engine_is_shown() -> None:
    traits = Traits("metropolis", takes_priorities=True, capacity_tokens=4000)
    assert str(traits) == "metropolis serve, gets priorities, KV cache of 4,000 tokens"
