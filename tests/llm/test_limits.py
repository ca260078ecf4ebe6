"""Turns under all influences at once: limits, budgets, failures, holds, cancelled calls."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm import (
    Client,
    Completion,
    LLMError,
    MalformedError,
    Prices,
    RateLimitedError,
    RefusedError,
    UnavailableError,
)
from tests.llm.fakes import Fake, request
from tests.llm.virtual_loop import run_virtually

limits = st.fixed_dictionaries(
    {
        "concurrency": st.integers(1, 5),
        "retries": st.integers(0, 3),
        "requests_per_minute": st.none() | st.integers(1, 20),
        "tokens_per_minute": st.none() | st.integers(50, 500),
        "max_tokens": st.none() | st.integers(0, 5000),
        "max_cost": st.none() | st.floats(0, 5),
    }
)


@given(seed=st.integers(0, 10_000), limits=limits, calls=st.integers(1, 40))
def test_every_call_ends_and_releases_its_turn(
    seed: int, limits: dict[str, int | None], calls: int
) -> None:
    """The event loop with a virtual clock fails when a call waits forever."""
    draw = random.Random(seed)

    def answer(_: object) -> Completion | Exception:
        outcomes = [
            Completion("", draw.randint(0, 9), draw.randint(0, 20), "stop"),
            UnavailableError("down"),
            RateLimitedError("slow", draw.choice([None, 0.0, 30.0, 1e9])),
            MalformedError("odd"),
            RefusedError("never"),
        ]
        return draw.choices(outcomes, [6, 1, 1, 1, 1])[0]

    fake = Fake(answer, latency_s=lambda _: draw.choice([0.0, 1.0, 10.0, 1e6]))
    client = Client(fake, timeout_s=60, prices=Prices(1e3, 1e3), **limits)  # type: ignore[arg-type]

    async def ask() -> list[Completion | BaseException]:
        tasks = []
        for number in range(calls):
            await asyncio.sleep(draw.choice([0, 0, 5]))
            wanted = request(priority=draw.randint(0, 3), agent=number)
            tasks.append(asyncio.create_task(client.call(wanted)))
            if draw.random() < 0.2:
                draw.choice(tasks).cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    for outcome in run_virtually(ask()):
        assert isinstance(outcome, Completion | LLMError | asyncio.CancelledError), outcome
    gate = client.gate
    assert gate.in_flight == 0
    assert gate.token_budget.reserved == gate.cost_budget.reserved == 0
    assert gate.token_budget.spent <= gate.token_budget.limit
    assert gate.cost_budget.spent <= gate.cost_budget.limit + 1e-9
    assert fake.in_flight_max <= (limits["concurrency"] or 0)
    usage = client.total
    assert usage.calls + usage.failures <= calls
