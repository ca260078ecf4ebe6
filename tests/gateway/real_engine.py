"""Shared checks of a gateway with any real engine, independent of the engine's speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from metropolis.gateway.proxy import Gateway
from tests.gateway.engines import StubEngine, gateway_before, until, until_reported
from tests.gateway.test_preemption import Impatient, at_step
from tests.gateway.test_server import post
from tests.gateway.test_stream_state import read

ENDLESS = 6000  # tokens: many seconds
ATTEMPTS_MAX = 8
REPORT_S = 12.0
LENGTHS = (400, 1600, 6000)


class RealEngine(StubEngine):
    """A real engine, which its fixture starts and stops."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def start(self) -> str:
        return self.url

    async def kill(self) -> None:
        pass


def content_of(answer: bytes) -> Any:
    whole = json.loads(answer)
    return whole["choices"], whole["usage"]["completion_tokens"]


async def order_of(
    steps: tuple[int, ...],
    url: str,
    gateway: Gateway,
    waiting: Callable[[], float],
    ask: Callable[[int], tuple[str, dict[str, Any], dict[str, str]]],
) -> list[int]:
    """Return the order in which an engine that runs one request at a time dequeues `steps`.

    `ask(step)` returns path, body and headers of an endless stream, `waiting()` the length of the
    engine's queue. Each request is cancelled once its answer has begun, so that the next begins.
    It is repeated if the first answer ends before the engine has reported the others: an engine
    without a core generates long answers before it reports anything.
    """
    for _ in range(ATTEMPTS_MAX):
        order: list[int] = []
        try:
            await _queue_and_leave(order, steps, url, waiting, ask)
        except* TimeoutError:
            order.clear()
        await until(lambda: gateway.scheduling.in_flight == [0])
        if order:
            return order[1:]
    raise AssertionError(f"the engine never reported {len(steps)} waiting requests")


async def _queue_and_leave(
    order: list[int],
    steps: tuple[int, ...],
    url: str,
    waiting: Callable[[], float],
    ask: Callable[[int], tuple[str, dict[str, Any], dict[str, str]]],
) -> None:
    async def one(step: int, leaves: asyncio.Event) -> None:
        path, body, headers = ask(step)
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + path, json=body | {"stream": True}, headers=headers) as answer,
        ):
            assert answer.status == 200
            await answer.content.readany()
            order.append(step)
            await leaves.wait()

    leaving = {step: asyncio.Event() for step in (0, *steps)}
    async with asyncio.TaskGroup() as group:
        group.create_task(one(0, leaving[0]))
        await until(lambda: order == [0])
        for step in steps:
            group.create_task(one(step, leaving[step]))
        await until_reported(waiting, len(steps), REPORT_S)
        for begun in range(1, len(steps) + 1):
            leaving[order[-1]].set()
            await until(lambda begun=begun: len(order) > begun)  # type: ignore[misc]
        leaving[order[-1]].set()


async def preempted(real_url: str, path: str, body: dict[str, Any], stream: bool) -> list[str]:
    """Return the text of a long answer, undisturbed and preempted by a short one."""

    async def one(base: str, tokens: int, done: list[int]) -> str:
        asked = body | {"max_tokens": tokens, "ignore_eos": True}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        status, answer, _ = await post(base, asked, path=path, headers=at_step(tokens))
        assert status == 200
        text, finish, used = read_of(answer) if stream else whole_of(answer)
        assert (finish, used) == ("length", tokens)
        done.append(tokens)
        return text

    engine = RealEngine(real_url)
    async with gateway_before(engine, policy=Impatient(), at_once=1) as (url, gateway):
        for tokens in LENGTHS:
            done: list[int] = []
            undisturbed = await one(real_url, tokens, [])
            long = asyncio.create_task(one(url, tokens, done))
            await until(lambda: gateway.scheduling.preemptible or long.done())  # noqa: B023
            texts = [undisturbed, (await asyncio.gather(long, one(url, 5, done)))[0]]
            if gateway.metrics.preempted:  # otherwise it ended before the short one arrived
                assert (done, gateway.metrics.preempted) == ([5, tokens], 1)
                return texts
    raise AssertionError("not preempted")


def read_of(stream: bytes) -> tuple[str, str, int]:
    got = read(stream)
    (finish,), (usage,) = got["finish"], got["usage"]
    return got["text"], finish, usage["completion_tokens"]


def whole_of(answer: bytes) -> tuple[str, str, int]:
    (choice,), tokens = content_of(answer)
    text = choice.get("text") or choice["message"]["content"]
    return text, choice["finish_reason"], tokens
