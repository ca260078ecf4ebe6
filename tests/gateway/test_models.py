"""Engines that serve different models behind one gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.backend import LocalGateway
from metropolis.gateway.models import NAME_CHARACTERS_MAX, routed_by
from metropolis.gateway.probing import Traits
from metropolis.gateway.proxy import Gateway
from metropolis.gateway.routes import GENERATE
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.base import MalformedError, RefusedError
from metropolis.policy.fixed import Fcfs
from metropolis.scheduler.models import ServedModels
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.route_engine import RouteEngine
from tests.gateway.test_server import PATHS, post
from tests.llm.fakes import request


def serving(*models: str) -> RouteEngine:
    engine = RouteEngine()
    engine.models = [*models]
    return engine


@asynccontextmanager
async def two() -> AsyncIterator[tuple[str, Gateway, RouteEngine, RouteEngine]]:
    """Yield a gateway before an engine with an adapter and one with an alias."""
    engines = serving("tiny", "lora"), serving("vast", "alias")
    async with gateway_before(*engines) as (url, gateway):
        yield url, gateway, *engines


def named(model: str, question: str = "why") -> dict[str, Any]:
    return chat(question) | {"model": model}


@pytest.mark.parametrize(
    ("model", "instance"),
    [("tiny", 0), ("lora", 0), ("tiny:lora", 0), ("vast", 1), ("alias", 1), ("alias:x:y", None)],
)
def test_a_request_goes_to_an_engine_that_serves_its_model(
    model: str, instance: int | None
) -> None:
    async def ask() -> None:
        async with two() as (url, gateway, *engines):
            for n in range(4):
                status, _, _ = await post(url, named(model, str(n)))
                assert status == (404 if instance is None else 200)
            expected = [4 * (n == instance) for n in range(2)]
            assert [len(engine.raw) for engine in engines] == expected
            assert all(body["model"] == model for engine in engines for body in engine.bodies)
            assert gateway.scheduling.in_flight == [0, 0]

    asyncio.run(ask())


@pytest.mark.parametrize("path", [PATHS[0], "/v1/embeddings"])
def test_an_unknown_model_gets_404_with_the_known_names(path: str) -> None:
    async def ask() -> None:
        async with two() as (url, _, *engines):
            status, answer, _ = await post(url, named("huge"), path=path)
            error = json.loads(answer)["error"]
            assert (status, error["code"]) == (404, "model_not_found")
            assert error["message"] == (
                "no engine serves the model; they serve 'alias', 'lora', 'tiny', 'vast'"
            )
            assert not any(engine.raw or engine.paths for engine in engines)

    asyncio.run(ask())


def test_different_engines_need_a_model_and_equal_ones_do_not() -> None:
    async def ask() -> None:
        async with two() as (url, *_):
            status, answer, _ = await post(url, {"text": "a"}, path=GENERATE)
            assert status == 400
            assert "give one in the field model: 'alias'" in json.loads(answer)["error"]["message"]
            assert (await post(url, {"text": "a", "model": "vast"}, path=GENERATE))[0] == 200
        async with gateway_before(serving("tiny"), serving("tiny")) as (url, _):
            for body in ({"text": "a"}, {"text": "a", "model": ""}, {"text": "a", "model": None}):
                assert (await post(url, body, path=GENERATE))[0] == 200

    asyncio.run(ask())


def test_unordered_requests_are_routed_by_their_model_too() -> None:
    async def ask() -> None:
        async with two() as (url, _, first, second):
            for n in range(3):
                body = {"model": "vast", "input": str(n)}
                assert (await post(url, body, path="/v1/embeddings"))[0] == 202
            assert (len(first.paths), len(second.paths)) == (0, 3)
            await second.kill()
            status, answer, _ = await post(url, {"model": "vast"}, path="/v1/embeddings")
            assert status == 502
            message = json.loads(answer)["error"]["message"]
            assert message == "no engine that serves the model answers"
            await second.start()

    asyncio.run(ask())


def test_the_list_of_models_is_the_union() -> None:
    async def ask() -> None:
        async with two() as (url, *_), aiohttp.ClientSession() as session:
            async with session.get(f"{url}/v1/models") as answer:
                assert answer.headers["X-Metropolis-Gateway"] == "1"
                listed = await answer.json()
            assert listed["object"] == "list"
            assert [model["id"] for model in listed["data"]] == ["alias", "lora", "tiny", "vast"]
            assert all(model["owned_by"] == "stub" for model in listed["data"])
            async with session.get(f"{url}/v1/models/vast") as answer:
                assert (await answer.json())["id"] == "vast"

    asyncio.run(ask())


def test_requests_wait_while_the_engines_of_their_model_are_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.05)

    async def ask() -> None:
        async with two() as (url, gateway, first, second):
            await second.kill()
            waiting = asyncio.create_task(post(url, named("vast")))
            await until(lambda: gateway.scheduling.is_up == [True, False])
            assert (await post(url, named("tiny")))[0] == 200
            assert not waiting.done()
            await second.start()
            assert (await waiting)[0] == 200
            assert [len(first.raw), len(second.raw)] == [1, 1]

    asyncio.run(ask())


def test_an_engine_may_return_with_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_EVERY_S", 0.05)
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.05)

    async def ask() -> None:
        async with gateway_before(serving("tiny"), other := serving("tiny")) as (url, gateway):
            await other.kill()
            await until(lambda: gateway.scheduling.is_up == [True, False])
            other.models = ["vast"]
            await other.start()
            await until(lambda: gateway.scheduling.is_up == [True, True])
            for n in range(3):
                assert (await post(url, named("tiny", str(n))))[0] == 200
            assert not other.raw
            assert (await post(url, named("vast")))[0] == 200

    asyncio.run(ask())


def test_a_model_is_known_once_the_probe_of_its_engine_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.05)
    probing, is_probed = asyncio.Event(), asyncio.Event()

    async def slow_traits(*_: object, **__: object) -> Traits:
        probing.set()
        await is_probed.wait()
        return Traits()

    async def ask() -> None:
        async with gateway_before(serving("tiny"), other := serving("tiny")) as (url, gateway):
            await other.kill()
            gateway.pool.suspect(1, gateway.engines[1].lost(OSError("it is gone")))
            other.models = ["vast"]
            monkeypatch.setattr("metropolis.gateway.engine_client.traits_of", slow_traits)
            await other.start()
            await probing.wait()
            assert (await post(url, named("vast")))[0] == 404
            is_probed.set()
            await until(lambda: gateway.scheduling.is_up == [True, True])
            assert (await post(url, named("vast")))[0] == 200

    asyncio.run(ask())


def test_an_engine_that_lists_no_models_gets_the_unknown_ones() -> None:
    async def ask() -> None:
        engines = serving("tiny"), serving()
        async with gateway_before(*engines) as (url, _):
            for n in range(3):
                assert (await post(url, named("huge", str(n))))[0] == 200
            assert [len(engine.raw) for engine in engines] == [0, 3]

    asyncio.run(ask())


@pytest.mark.parametrize(("listed", "status"), [(["vast"], 404), (["vast", "huge"], 200)])
def test_a_request_that_waits_follows_the_list_of_its_engine(
    listed: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_EVERY_S", 0.05)

    async def ask() -> None:
        other = serving()
        other.open.clear()
        async with gateway_before(serving("tiny"), other, at_once=1) as (url, gateway):
            first = asyncio.create_task(post(url, named("huge", "1")))
            await until(lambda: other.raw)
            second = asyncio.create_task(post(url, named("huge", "2")))
            await until(lambda: len(gateway.scheduling) == 1)
            other.models = listed
            await until(lambda: gateway.scheduling.scheduler.models.of[1] == frozenset(listed))
            other.open.set()
            assert (await first)[0] == 200
            assert (await second)[0] == status
            assert len(gateway.scheduling) == 0

    asyncio.run(ask())


def test_requests_that_come_before_the_lists_go_to_the_engines_of_their_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metropolis.gateway.engine_pool.PROBE_LOST_S", 0.05)

    async def ask() -> None:
        engines = serving("tiny"), serving("vast")
        for engine in engines:
            engine.look_status = 503
        async with gateway_before(*engines) as (url, gateway):
            models = ("tiny", "vast", "tiny:lora", "huge")
            asked = [asyncio.create_task(post(url, named(model, model))) for model in models]
            await until(lambda: len(gateway.scheduling) == len(models))
            engines[0].look_status = 200
            assert [(await asked[n])[0] for n in (0, 2)] == [200, 200]
            engines[1].look_status = 200
            assert (await asked[1])[0] == 200
            status, answer, _ = await asked[3]
            error = json.loads(answer)["error"]
            assert (status, error["code"]) == (404, "model_not_found")
            assert error["message"] == "no engine serves the model; they serve 'tiny', 'vast'"
            assert [sorted(engine.questions) for engine in engines] == [
                ["tiny", "tiny:lora"], ["vast"],
            ]  # fmt: skip
            assert sum(gateway.metrics.requests.values()) == len(models)

    asyncio.run(ask())


def test_unlisted_names_are_kept_shortened() -> None:
    served = ServedModels(Fleet.uniform(2, 1000, 1.0))
    for models in (None, frozenset("a")):
        served.set(0, models)
        routed = routed_by("x" * 1_000_000, served, [True, True])
        assert routed == "x" * NAME_CHARACTERS_MAX


def test_a_run_chooses_one_of_the_models() -> None:
    async def ask() -> None:
        engines = serving("tiny"), serving("vast")
        urls = [await engine.start() for engine in engines]
        fleet = Fleet.uniform(2, 100, 1.0)
        undecided = LocalGateway(urls, Fcfs(), LeastLoaded(fleet))
        with pytest.raises(RefusedError, match="serves tiny, vast; choose one with --model"):
            await undecided.check()
        await undecided.close()
        backend = LocalGateway(urls, Fcfs(), LeastLoaded(fleet), model="vast")
        await backend.check()
        for step in range(3):
            await backend.complete(request(step=step))
        assert [len(engine.raw) for engine in engines] == [0, 3]
        await backend.close()
        for engine in engines:
            await engine.kill()

    asyncio.run(ask())


def test_prompts_of_the_sglang_backend_name_the_model_to_a_gateway() -> None:
    async def ask() -> None:
        async with two() as (url, _, first, second):
            backend = SGLang(url, "vast")
            await backend.check()
            with suppress(MalformedError):  # the stub's answer
                await backend.complete(request())
            await backend.close()
            assert [len(engine.raw) for engine in (first, second)] == [0, 1]
            assert second.bodies[0]["model"] == "vast"

    asyncio.run(ask())


def test_one_model_and_an_unknown_one() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, gateway):
            assert (await post(url, named("huge")))[0] == 404
            assert (await post(url, named("tiny")))[0] == 200
            counts = gateway.metrics.requests
            assert {key[1:]: n for key, n in counts.items()} == {("", 404): 1, ("chat", 200): 1}

    asyncio.run(ask())
