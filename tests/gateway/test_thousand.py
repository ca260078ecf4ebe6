"""A thousand concurrent requests of an `openai` client while engines are killed and restarted."""

from __future__ import annotations

import asyncio
from functools import partial

import openai
import pytest

from metropolis.dispatch.fixed import RoundRobin
from tests.gateway.engines import StubEngine, gateway_before, until

REQUESTS = 1000


async def answer(client: openai.AsyncOpenAI, question: str, stream: bool) -> str | None:
    asked = [{"role": "user", "content": question}]
    if not stream:
        whole = await client.chat.completions.create(model="tiny", messages=asked)  # type: ignore[arg-type]
        return whole.choices[0].message.content
    pieces = await client.chat.completions.create(model="tiny", messages=asked, stream=True)  # type: ignore[call-overload]
    return "".join([piece.choices[0].delta.content or "" async for piece in pieces])


@pytest.mark.usefixtures("patient_probes")
def test_none_is_lost_and_none_answered_again_but_those_at_work_at_a_kill() -> None:
    async def ask() -> None:
        engines = [StubEngine(latency_s=0.05) for _ in range(2)]

        def is_past(answers: int) -> bool:
            return sum(engine.answered.total() for engine in engines) > answers

        async with gateway_before(*engines, dispatcher=RoundRobin, at_once=50) as (url, gateway):
            # By default a connection may take 5 s: a thousand take longer on a busy machine.
            client = openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600
            )
            asked = [
                asyncio.create_task(answer(client, f"q{n}", stream=bool(n % 2)))
                for n in range(REQUESTS)
            ]
            for killed, answers in ((0, 200), (1, 600)):
                await until(partial(is_past, answers))
                await engines[killed].kill()
                await asyncio.sleep(0.1)
                await engines[killed].start()
            answers_of = await asyncio.gather(*asked)
            await client.close()
            for n, text in enumerate(answers_of):
                assert text == (f"to q{n}!" if n % 2 else f"to q{n} — ¿sí?")
            assert 0 < gateway.metrics.retried <= 2 * 50
            answered = engines[0].answered + engines[1].answered
            assert len(answered) == REQUESTS
            assert answered.total() - REQUESTS <= gateway.metrics.retried

    asyncio.run(ask())
