"""Order of requests in the gateway's queue, and priorities for each kind of engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.gateway.priority_quantizer import LAST, REMEMBERED, Priorities
from metropolis.policy.base import SPECULATIVE_PRIORITY, QueuedRequest
from metropolis.policy.fixed import StepFirst
from tests.gateway.engines import StubEngine, chat, gateway_before, until
from tests.gateway.test_server import post

RANKS = st.lists(st.integers(0, (1 << 62) - 2), min_size=LAST, max_size=60, unique=True)


def at_step(step: int) -> dict[str, str]:
    return {"X-Metropolis-Step": str(step)}


def test_what_waits_goes_in_the_order_of_the_policy() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with gateway_before(engine, policy=StepFirst(), at_once=1) as (url, gateway):
            steps = (0, 7, 2, 5, 9, 2)
            asked = []
            for n, step in enumerate(steps):
                body = chat(f"{step} {n}")
                asked.append(asyncio.create_task(post(url, body, headers=at_step(step))))
                await until(
                    lambda: len(gateway.scheduling) == max(0, len(asked) - 1) and engine.raw
                )
            engine.open.set()
            await asyncio.gather(*asked)
            assert engine.questions == ["0 0", "2 2", "2 5", "5 3", "7 1", "9 4"]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "owned_by", "expected"),
    [
        ("", "stub", [{}, {}]),
        ("", "vllm", [{"priority": 12}, {"priority": 40}]),
        ("vllm:", "vllm", [{"priority": 12}, {"priority": 40}]),
        ("sglang:", "?", [{"priority": 0}, {"priority": 5}]),
        ("", "sglang", [{}, {}]),  # it may lack the flags that priorities require
    ],
)
def test_each_kind_of_engine_is_told_in_its_own_words(
    kind: str, owned_by: str, expected: list[dict[str, Any]]
) -> None:
    async def ask() -> None:
        engine = StubEngine(owned_by)
        async with gateway_before(engine, policy=StepFirst(), kind=kind) as (url, _):
            for step in (12, 40):
                await post(url, chat("x", priority=99), headers=at_step(step))
            bodies = engine.bodies
            rids = {body.pop("rid", None) for body in bodies}
            assert len(rids - {None}) == (2 if "sglang" in (kind[:-1], owned_by) else 0)
            assert bodies == [chat("x", priority=99) | fields for fields in expected]

    asyncio.run(ask())


@given(RANKS)
def test_priorities_are_few_and_keep_the_order_of_ranks(ranks: list[int]) -> None:
    priorities = Priorities()
    levels = {priorities.level(rank) for rank in ranks}
    assert levels <= set(range(LAST))
    again = [priorities.level(rank) for rank in sorted(ranks)]
    assert again[0] == 0
    assert priorities.level((1 << 62) - 1) == LAST - 1
    assert priorities.level(-1) == 0
    assert {priorities.level(SPECULATIVE_PRIORITY + rank) for rank in ranks} == {LAST}


def test_priorities_forget_what_was_long_ago() -> None:
    priorities = Priorities()
    for rank in range(5 * REMEMBERED):
        priorities.level(rank)
    assert priorities.level(4 * REMEMBERED) == 0
    assert len(priorities._sorted) == len(priorities._latest) == REMEMBERED


class RanksOnce(StepFirst):
    """Cannot rank a request that has started."""

    has_started = False

    def started(self, request: QueuedRequest, now_s: float) -> None:
        self.has_started = True

    def rank(self, request: QueuedRequest) -> int:
        if self.has_started:
            raise ZeroDivisionError
        return super().rank(request)


def test_the_priority_is_the_rank_of_the_command_to_place() -> None:
    async def ask() -> None:
        engine = StubEngine("vllm")
        async with gateway_before(engine, policy=RanksOnce(), kind="vllm:") as (url, _):
            status, _, _ = await post(url, chat("x"), headers=at_step(12))
            assert status == 200
            assert [body.get("priority") for body in engine.bodies[-1:]] == [12]

    asyncio.run(ask())
