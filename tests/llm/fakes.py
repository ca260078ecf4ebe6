"""Requests, and a backend for tests whose answers and latencies are functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from metropolis.llm.base import Completion, Request

Answer = Callable[[Request], Completion | Exception]


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "agent": 3,
        "step": 14,
        "function": "plan",
        "prompt": "What now?",
        "max_tokens": 20,
        "temperature": 0.5,
        "seed": 1,
        "priority": 14,
        "program": f"agent {changes.get('agent', 3)}",
    }
    if "messages" in changes:
        del fields["prompt"]
    return Request(**{**fields, **changes})


class Fake:
    """Answers by `answer`, after `latency_s` of the loop's time; records the requests and times."""

    name = "fake"

    def __init__(
        self,
        answer: Answer = lambda r: Completion(f"to {r.prompt}", 5, 7, "stop"),
        latency_s: Callable[[Request], float] = lambda r: 1.0,
    ) -> None:
        self.answer = answer
        self.latency_s = latency_s
        self.sent: list[tuple[float, Request]] = []
        self.in_flight = 0
        self.in_flight_max = 0

    def __str__(self) -> str:
        return "fake model at http://nowhere"

    async def check(self) -> None:
        pass

    async def complete(self, request: Request) -> Completion:
        self.sent.append((asyncio.get_running_loop().time(), request))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            await asyncio.sleep(self.latency_s(request))
        finally:
            self.in_flight -= 1
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        completion = await self.complete(request)
        for word in completion.text.split(" "):
            yield word
        yield completion

    async def close(self) -> None:
        pass
