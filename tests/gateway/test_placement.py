"""A run sends a gateway the program, function, upstream and step of every call."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis import Agent
from metropolis.gateway.request_parsing import Resuming, from_fields, from_http
from metropolis.llm import Backend, Client
from metropolis.llm.backends.compatible import Compatible, path_of
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.placement import headers_of, is_name, name_of, placement_of
from metropolis.policy.base import QueuedRequest
from metropolis.policy.fixed import Fcfs
from metropolis.runtime.live.simulation import Simulation
from metropolis.worlds.minimal import Green
from tests.gateway.engines import StubEngine, gateway_before
from tests.gateway.parsing import read
from tests.llm.fakes import request

BACKENDS: dict[str, Callable[[str], Backend]] = {
    "compatible": Compatible,
    "openai": OpenAIClient,
    "sglang": SGLang,
}
CHAT = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"})
NAMES = ["Ada", "Zoë 二", "a\nb"]
STEPS = 3


@dataclass
class Thinker(Agent):
    """Plans, then sees and hears concurrently, then thinks in a stream."""

    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        await llm.chat("What now?", function="plan")
        await asyncio.gather(
            llm.chat("What do you see?", function="sieht, hört"),
            llm.chat("What do you hear?", function="sieht, hört"),
        )
        pieces = [piece async for piece in llm.stream("Why?", function="think")]
        assert len(pieces) > 1
        return {"walk": (0, 0), "say": ""}


class Recording(Fcfs):
    def __init__(self) -> None:
        self.seen: list[QueuedRequest] = []

    def arrived(self, request: QueuedRequest) -> None:
        self.seen.append(request)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_before_a_gateway_says_where_its_calls_belong(backend: str) -> None:
    policy = Recording()

    async def run() -> None:
        async with gateway_before(StubEngine(), policy=policy) as (url, _):
            agents = [Thinker(name) for name in NAMES]
            simulation = Simulation(Green(NAMES), agents, Client(BACKENDS[backend](url)))
            result = await asyncio.to_thread(simulation.run, STEPS)
            assert result.calls == 4 * len(NAMES) * STEPS

    asyncio.run(run())
    expected = Counter(
        (f"{name} at {step}", function, upstream, step)
        for name in ("Ada", "Zoë 二", "a%0Ab")
        for step in range(STEPS)
        for function, upstream in (
            ("plan", None), ("sieht, hört", "plan"), ("sieht, hört", "plan"),
            ("think", "sieht, hört"),
        )
    )  # fmt: skip
    programs = {program.replace("%20", " ") for program, *_ in expected}
    seen = Counter(
        (one.program.replace("%20", " "), one.function, one.upstream, one.step)
        for one in policy.seen
    )
    assert {program for program, *_ in seen} == programs
    assert seen == expected
    by_program = Counter(one.program_arrived_s for one in policy.seen)
    assert set(by_program.values()) == {4}


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_servers_are_told_no_names(backend: str) -> None:
    async def run() -> None:
        engine = StubEngine()
        client = Client(BACKENDS[backend](await engine.start()))
        await client.check()
        await client.call(request(messages=({"role": "user", "content": "why"},)))
        assert not [
            name for head in engine.headers for name in head if "metropolis" in name.lower()
        ]
        await client.close()
        await engine.kill()

    asyncio.run(run())


@given(st.text(), st.text(), st.none() | st.text(), st.integers(0, 10**9), st.booleans())
def test_whatever_names_are_the_gateway_takes_them(
    program: str, function: str, upstream: str | None, step: int, speculative: bool
) -> None:
    told = request(
        program=program, function=function, upstream=upstream, step=step, speculative=speculative
    )
    headers = headers_of(told)
    asked = read(headers, b"{}")
    assert not asked.is_inferred
    assert asked.program == name_of(f"{program} at {step}")
    assert asked.function == name_of(function)
    assert asked.upstream == (None if upstream is None else name_of(upstream))
    assert (asked.step, asked.speculative) == (step, speculative)
    assert all(is_name(value) for value in headers.values())


@given(
    st.sampled_from([{"prompt": "why? " * 700}, {"messages": CHAT}]),
    st.text(),
    st.none() | st.text(),
    st.sampled_from([(), ("END", "a")]),
    st.booleans(),
)
def test_requests_of_this_process_are_as_those_of_http(
    content: dict[str, Any], function: str, upstream: str | None, stop: Any, preempts: bool
) -> None:
    asked = request(**content, function=function, upstream=upstream, stop=stop, step=7)
    path = f"/v1/{path_of(asked)}"
    fields = {**Compatible("http://gateway", "tiny").body_of(asked), "stream": True}
    resuming = Resuming(preempts, is_known=True)
    body = msgspec.json.encode(fields)
    http = from_http(path, headers_of(asked), body, "", resuming)
    own = from_fields(path, {}, fields, placement_of(asked), resuming)
    assert http.resumable is not None
    assert own.resumable is not None
    for one, other in (
        (own.resumable.first(), http.resumable.first()),
        (own.resumable.rest(" 1", 1, None), http.resumable.rest(" 1", 1, None)),
    ):
        assert isinstance(other, bytes)
        assert json.loads(msgspec.json.encode(one)) == json.loads(other)
    same: dict[str, Any] = {"headers": {}, "body": b"", "resumable": None}
    assert replace(own, **same) == replace(http, **same)


def test_long_names_stay_apart() -> None:
    names = [name_of("a" * 300 + end) for end in "bc"] + [name_of("é" * 201), name_of("")]
    assert len(set(names)) == 4
    assert name_of("é" * 200) == "é" * 200
