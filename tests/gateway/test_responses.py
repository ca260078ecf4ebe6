"""Requests that refer to a response go to the engine that generated it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.access import Access
from metropolis.gateway.keys import Keys
from metropolis.gateway.responses import AGE_S, RESPONSES_MAX, FirstEvent, Responses, id_of
from metropolis.gateway.routes import (
    RESPONSES,
)
from tests.gateway.engines import gateway_before, until
from tests.gateway.raw_clients import connected
from tests.gateway.route_engine import BODIES, RouteEngine, asked
from tests.gateway.test_server import post


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_continued_where_it_was_made(stream: bool) -> None:
    async def ask() -> None:
        engines = [RouteEngine() for _ in range(3)]
        async with gateway_before(*engines, dispatcher=RoundRobin) as (url, gateway):
            for engine in engines:
                engine.raw.clear()
            id_, made_by = await respond(url, engines, None, stream)
            for _ in range(4):
                id_, engine_then = await respond(url, engines, id_, stream)
                assert engine_then is made_by
                await respond(url, engines, None, stream)  # to the engines in turn
            assert len({key[1] for key in gateway.metrics.requests}) == 1
            for method, suffix in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
                async with asked(url, method, f"{RESPONSES}/{id_}{suffix}") as answer:
                    assert answer.status == 202
                    assert made_by.paths[-1] == (method, f"{RESPONSES}/{id_}{suffix}")

    asyncio.run(ask())


async def respond(
    url: str, engines: list[RouteEngine], previous: str | None, stream: bool
) -> tuple[str, RouteEngine]:
    before = [len(engine.raw) for engine in engines]
    body = BODIES[RESPONSES] | {"stream": stream}
    if previous is not None:
        body["previous_response_id"] = previous
    status, answer, _ = await post(url, body, path=RESPONSES)
    assert status == 200
    (engine,) = [e for e, n in zip(engines, before, strict=True) if len(e.raw) > n]
    if stream:
        return json.loads(answer.split(b"data: ")[1].split(b"\n")[0])["response"]["id"], engine
    return json.loads(answer)["id"], engine


def test_a_response_goes_on_in_the_program_it_began() -> None:
    async def ask() -> None:
        engines = [RouteEngine() for _ in range(2)]
        async with gateway_before(*engines, dispatcher=RoundRobin) as (url, gateway):
            id_, _ = await respond(url, engines, None, stream=False)
            assert len(gateway.programs) == 1
            await respond(url, engines, id_, stream=False)
            assert len(gateway.programs) == 1
            await respond(url, engines, None, stream=False)
            assert len(gateway.programs) == 2

    asyncio.run(ask())


def test_what_waits_for_one_engine_holds_up_no_other() -> None:
    async def ask() -> None:
        engines = [RouteEngine() for _ in range(2)]
        async with gateway_before(*engines, dispatcher=RoundRobin, at_once=1) as (url, gateway):
            id_, made_by = await respond(url, engines, None, stream=False)
            other = engines[1 - engines.index(made_by)]
            made_by.open.clear()
            body = BODIES[RESPONSES] | {"previous_response_id": id_}
            first, second, leaving = [
                asyncio.create_task(post(url, body, path=RESPONSES)) for _ in range(3)
            ]
            await until(lambda: len(gateway.scheduling) == 2 and len(made_by.raw) == 2)
            for _ in range(3):
                assert (await respond(url, engines, None, stream=False))[1] is other
            leaving.cancel()
            await until(lambda: len(gateway.scheduling) == 1)
            made_by.open.set()
            assert [(await task)[0] for task in (first, second)] == [200, 200]
            assert gateway.scheduling.in_flight == [0, 0]

    asyncio.run(ask())


def test_a_response_whose_engine_is_lost_is_told_in_a_sentence() -> None:
    async def ask() -> None:
        engines = [RouteEngine() for _ in range(2)]
        async with gateway_before(*engines, dispatcher=RoundRobin, at_once=1) as (url, gateway):
            id_, made_by = await respond(url, engines, None, stream=False)
            made_by.open.clear()
            body = BODIES[RESPONSES] | {"previous_response_id": id_}
            tasks = [asyncio.create_task(post(url, body, path=RESPONSES)) for _ in range(3)]
            await until(lambda: len(gateway.scheduling) == 2)
            await made_by.kill()
            answers = [*await asyncio.gather(*tasks), await post(url, body, path=RESPONSES)]
            for status, answer, _ in answers:
                assert status == 502
                message = json.loads(answer)["error"]["message"]
                assert "which generated the response that the request refers to" in message
            async with asked(url, "GET", f"{RESPONSES}/{id_}") as answer:
                assert answer.status == 502
            assert (await post(url, BODIES[RESPONSES], path=RESPONSES))[0] == 200
            made_by.open.set()
            await made_by.start()
            await until(lambda: all(gateway.scheduling.is_up))
            assert (await post(url, body, path=RESPONSES))[0] == 200  # the engine stored it

    asyncio.run(ask())


def test_a_response_is_its_tenants(tmp_path: Path) -> None:
    """Another tenant's id is treated like an unknown one; neither reaches an engine."""
    keys = {name: f"{name}-0123456789abcdef" for name in ("alice", "bob")}
    file = tmp_path / "keys"
    file.write_text("".join(f"{name} {key}\n" for name, key in keys.items()))
    file.chmod(0o600)
    access = Access(keys=Keys(file, lambda _: None))
    alice, bob = ({"Authorization": f"Bearer {keys[name]}"} for name in ("alice", "bob"))

    async def ask() -> None:
        engine = RouteEngine()
        async with gateway_before(engine, access=access) as (url, gateway):
            for stream in (False, True):
                body = BODIES[RESPONSES] | {"stream": stream}
                assert (await post(url, body, path=RESPONSES, headers=alice))[0] == 200
            ids = [*engine.kept]
            came, programs = len(engine.raw), len(gateway.programs)
            for id_ in (*ids, "resp_unknown"):
                body = BODIES[RESPONSES] | {"previous_response_id": id_}
                status, told, _ = await post(url, body, path=RESPONSES, headers=bob)
                assert status == 404
                assert "no such response" in json.loads(told)["error"]["message"]
                for method, suffix in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
                    path = f"{RESPONSES}/{id_}{suffix}"
                    async with asked(url, method, path, headers=bob) as refused:
                        assert refused.status == 404
            assert (len(engine.raw), engine.paths, len(gateway.programs)) == (came, [], programs)
            for id_ in ids:
                async with asked(url, "GET", f"{RESPONSES}/{id_}", headers=alice) as own:
                    assert own.status == 202

    asyncio.run(ask())


@pytest.mark.parametrize("id_", ["..", "..%2f..%2fflush_cache", "a.b", "a%2e", "%2e%2e%2fmetrics"])
def test_an_id_names_no_other_route(id_: str) -> None:
    async def ask() -> None:
        engine = RouteEngine()
        async with gateway_before(engine) as (url, _):
            sent = f"GET {RESPONSES}/{id_} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            async with connected(url, sent) as (reader, _):
                assert b" 404 " in await reader.readline()
            assert not engine.paths

    asyncio.run(ask())


def test_the_memory_of_responses_is_bounded_and_ages() -> None:
    responses = Responses()
    for n in range(RESPONSES_MAX + 5):
        responses.add(str(n), n % 3, "p", "", float(n))
    assert len(responses) == RESPONSES_MAX
    assert responses.find("4", "", 0.0) is None
    found = responses.find("5", "", RESPONSES_MAX + 10.0)
    assert found is not None
    assert found.instance == 2
    responses.sweep(AGE_S + 100.0)
    assert len(responses) == RESPONSES_MAX + 5 - 101 + 1
    responses.sweep(2 * AGE_S + RESPONSES_MAX)
    assert len(responses) == 0


@pytest.mark.parametrize(
    "whole", [b"", b"[]", b'{"id": 7}', b'{"id": ""}', b"\xff", b'{"id": "' + b"x" * 201 + b'"}']
)
def test_what_is_no_id_is_not_kept(whole: bytes) -> None:
    assert id_of(whole) is None
    assert FirstEvent().id_in(b'data: {"response": ' + whole + b"}\n\n") is None


def test_a_first_event_without_end_is_given_up() -> None:
    first = FirstEvent()
    for _ in range(20):
        assert first.id_in(b"x" * 100_000) is None
    assert first.id_in(b'\n\ndata: {"response": {"id": "r"}}\n\n') is None
    assert FirstEvent().id_in(b'data: {"response": {"id": "r"}}\n\n') == "r"
