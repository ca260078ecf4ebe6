"""The engines' other routes: those that generate are ordered, the rest is forwarded."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from metropolis.gateway.engine_client import EngineClient
from metropolis.gateway.routes import (
    GENERATE,
    MESSAGES,
    ORDERED,
    PASSED,
    RESPONSES,
    SERVER_INFO,
)
from metropolis.gateway.unordered_request import redacted
from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import gateway_before, until
from tests.gateway.parsing import read
from tests.gateway.route_engine import BODIES, DEEP, RouteEngine, asked
from tests.gateway.test_priorities import at_step
from tests.gateway.test_server import post


@pytest.mark.parametrize("path", BODIES)
def test_what_generates_waits_in_the_order_of_the_policy(path: str) -> None:
    async def ask() -> None:
        engine = RouteEngine()
        engine.open.clear()
        async with gateway_before(engine, policy=StepFirst(), at_once=1) as (url, gateway):
            tasks = []
            for step in (0, 7, 2, 5):
                body = BODIES[path] | {"n": step}
                tasks.append(asyncio.create_task(post(url, body, path=path, headers=at_step(step))))
                await until(lambda: len(gateway.scheduling) == len(tasks) - 1 and engine.raw)
            engine.open.set()
            assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 4
            assert [body["n"] for body in engine.bodies] == [0, 2, 5, 7]
            assert gateway.scheduling.in_flight == [0]
            assert 'latency_seconds_bucket{le="+Inf"} 4.0' in gateway.metrics.text({}, {}, 0, 0)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("owned_by", "path", "fields", "header"),
    [
        ("vllm", RESPONSES, {"priority": 7}, "7"),
        ("vllm", MESSAGES, {}, "7"),
        ("sglang", GENERATE, {"priority": 0, "rid": ...}, None),
        ("sglang", RESPONSES, {"priority": 0}, None),
        ("sglang", MESSAGES, {}, None),
    ],
)
def test_each_route_is_told_what_it_knows(
    owned_by: str, path: str, fields: dict[str, Any], header: str | None
) -> None:
    async def ask() -> None:
        engine = RouteEngine(owned_by)
        engine.server_info = {
            "enable_priority_scheduling": True,
            "schedule_low_priority_values_first": True,
        }
        async with gateway_before(engine, policy=StepFirst()) as (url, _):
            await post(url, BODIES[path], path=path, headers=at_step(7))
            (body,) = engine.bodies
            added = {name: value for name, value in body.items() if name not in BODIES[path]}
            assert added == {n: body[n] if v is ... else v for n, v in fields.items()}
            assert engine.headers[0].get("X-Vllm-Priority") == header

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "name", "form"),
    [
        (RESPONSES, b"event: error\n", lambda event: event["message"]),
        (MESSAGES, b"event: error\n", lambda event: event["error"]["message"]),
        (GENERATE, b"", lambda event: event["error"]["message"]),
    ],
)
def test_a_stream_that_breaks_off_says_so_as_its_route_does(
    path: str, name: bytes, form: Any
) -> None:
    async def ask() -> None:
        engine = RouteEngine()
        engine.pieces = asyncio.Semaphore(1)
        async with gateway_before(engine) as (url, _):
            async with asked(url, "POST", path, json=BODIES[path] | {"stream": True}) as answer:
                begin = await answer.content.readuntil(b"\n\n")
                assert b'"n": 0' in begin
                await engine.kill()
                rest = b""
                with suppress(aiohttp.ClientPayloadError):  # it has no regular end
                    while piece := await answer.content.readany():
                        rest += piece
            last = rest.split(b"\n\n")[-2]
            assert last.startswith(name + b"data: ")
            assert "was lost" in form(json.loads(last.partition(b"data: ")[2]))

    asyncio.run(ask())


def test_what_is_not_ordered_passes_as_it_comes() -> None:
    async def ask() -> None:
        engine = RouteEngine()
        async with gateway_before(engine, at_once=1) as (url, gateway):
            engine.open.clear()
            busy = asyncio.create_task(post(url, BODIES[GENERATE], path=GENERATE))
            await until(lambda: gateway.scheduling.in_flight == [1])
            for method, path in PASSED:
                if path in SERVER_INFO:
                    continue
                data = None if method == "GET" else b' {"input":  "x", "nan": NaN}'
                async with asked(url, method, f"{path}?a=1", data=data) as answer:
                    assert answer.status == 202
                    assert (await answer.read()).startswith(data or b"")
                    assert answer.headers["X-Seen"] == "1"
                assert engine.paths[-1] == (method, f"{path}?a=1")
            engine.open.set()
            await busy
            async with asked(url, "GET", "/metrics") as answer:
                name = gateway.engines[0].name
                labels = f'engine="{name}",route="/tokenize",status="202"'
                assert f"metropolis_passed_total{{{labels}}} 1.0" in await answer.text()
            assert gateway.pool.unordered == [0]

    asyncio.run(ask())


def test_what_is_passed_goes_to_the_least_busy_and_elsewhere_when_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask() -> None:
        engines = [RouteEngine() for _ in range(2)]
        async with gateway_before(*engines) as (url, gateway):
            engines[0].open.clear()
            busy = asyncio.create_task(post(url, BODIES[GENERATE], path=GENERATE))
            await until(lambda: sum(gateway.scheduling.in_flight) == 1)
            idle = gateway.scheduling.in_flight.index(0)
            for _ in range(2):
                async with asked(url, "POST", "/tokenize", data=b"{}") as answer:
                    assert answer.status == 202
            assert len(engines[idle].paths) == 2
            engines[0].open.set()
            await busy
            await engines[idle].kill()
            async with asked(url, "POST", "/tokenize", data=b"{}") as answer:
                assert answer.status == 202
            await engines[1 - idle].kill()
            async with asked(url, "POST", "/tokenize", data=b"{}") as answer:
                assert answer.status == 502

    asyncio.run(ask())


def test_what_is_passed_to_an_engine_that_hangs_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_client.PROBE_S", 0.1)
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_EVERY_S", 0.05)
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.05)

    async def ask() -> None:
        engines = [RouteEngine() for _ in range(2)]
        async with gateway_before(*engines) as (url, gateway):
            engines[0].hangs = True
            async with asked(url, "POST", "/tokenize", data=b"{}") as answer:
                assert answer.status == 202
            assert [len(engine.paths) for engine in engines] == [1, 1]
            assert gateway.pool.unordered == [0, 0]

    asyncio.run(ask())


@pytest.mark.parametrize("path", SERVER_INFO)
def test_an_engines_settings_come_without_its_keys(path: str) -> None:
    async def ask() -> None:
        engine = RouteEngine()
        async with gateway_before(engine) as (url, _), asked(url, "GET", path) as answer:
            if path == SERVER_INFO[1]:
                return
            text = await answer.text()
            for secret in ("sesame", "open", "/k"):
                assert secret not in text
            info = json.loads(text)
            assert (info["max_total_num_tokens"], info["model_path"]) == (7, "m")
            assert info["internal_states"][0] == {"api_key": "<redacted>", "n": [1]}
            assert info["eos_token"] is None

    asyncio.run(ask())


@pytest.mark.parametrize(
    "info", [b"", b"[1]", b"null", b'"key"', b"{", b"\xff", b'{"a":' * 9999, DEEP]
)
def test_settings_that_make_no_sense_tell_nothing(info: bytes) -> None:
    assert redacted(info) == b"{}"


@pytest.mark.parametrize(
    "path", ["/flush_cache", "/abort_request", "/sleep", "/v1/load_lora_adapter"]
)
def test_nothing_that_changes_an_engine_is_passed(path: str) -> None:
    async def ask() -> None:
        engine = RouteEngine()
        async with gateway_before(engine) as (url, _):
            assert (await post(url, {}, path=path))[0] == 404
            assert not engine.raw
            assert not engine.aborted

    asyncio.run(ask())


def test_a_prompt_is_read_in_every_form() -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "a" * 4000},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "output": "1"},
    ]
    same = [
        read({}, json.dumps(body).encode())
        for body in (
            {"messages": [{"role": "system", "content": "be brief"}, turns[0]]},
            {"input": "a" * 4000, "instructions": "be brief"},
            {"input": turns[:1], "instructions": "be brief"},
            {"messages": turns[:1], "system": "be brief"},
        )
    ]
    assert len({(one.function, one.opening, one.prompt_tokens) for one in same}) == 1
    assert same[0].prompt_tokens > 1000
    later = read({}, json.dumps({"input": turns, "instructions": "be brief"}).encode())
    assert (later.opening, later.is_continued) == (same[0].opening, True)
    for body in ({"text": "a" * 4000}, {"input_ids": [7] * 1000}, {"text": ["a" * 2000] * 2}):
        assert 1000 <= read({}, json.dumps(body).encode()).prompt_tokens < 1100
    owned = {"messages": [], "metadata": {"user_id": "me"}}
    assert read({}, json.dumps(owned).encode()).program == "me"


def test_all_ordered_routes_are_tested() -> None:
    assert set(BODIES) < set(ORDERED)


def test_an_engine_with_a_key_of_its_own_gets_no_clients() -> None:
    async def ask() -> None:
        stub = RouteEngine()
        engine = EngineClient(await stub.start(), "engines")
        headers = {"X-Api-Key": "mine", "Authorization": "Bearer mine", "X-Other": "1"}
        reply = await engine.send("POST", MESSAGES, headers, json.dumps(BODIES[MESSAGES]).encode())
        assert reply.status == 200
        reply.close()
        (sent,) = stub.headers
        assert sent["Authorization"] == "Bearer engines"
        assert sent["X-Other"] == "1"
        assert "mine" not in sent.values()
        await engine.close()
        await stub.kill()

    asyncio.run(ask())
