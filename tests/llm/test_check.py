"""The conformance check: all of our backends pass, every violation is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from metropolis.llm import Backend, Completion, RefusedError, Request
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.check import check_backend
from metropolis.llm.connect import connect
from metropolis.types import MetropolisError
from tests.llm.faults import FaultyServer


def test_the_scripted_author_passes() -> None:
    asyncio.run(check_backend(Scripted()))


@pytest.mark.parametrize("kind", ["sglang", "compatible", "vllm", "openai"])
def test_backends_of_servers_pass(kind: str) -> None:
    async def check() -> None:
        async with FaultyServer() as server:
            backend = connect(f"{kind}:{server.url}")
            await check_backend(backend)
            await backend.close()

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["sglang", "compatible", "openai"])
def test_backends_of_a_real_server_pass(kind: str, sglang_url: str) -> None:
    async def check() -> None:
        backend = connect(f"{kind}:{sglang_url}")
        await check_backend(backend)
        await backend.close()

    asyncio.run(check())


class Nameless(Scripted):
    async def check(self) -> None:
        self.name = ""


class Endless(Scripted):
    async def complete(self, request: Request) -> Completion:
        return await super().complete(replace(request, max_tokens=1000))


class Uncounted(Scripted):
    async def complete(self, request: Request) -> Completion:
        return replace(await super().complete(request), prompt_tokens=0)


class Odd(Scripted):
    async def complete(self, request: Request) -> Completion:
        return replace(await super().complete(request), finish_reason="tired")


class Wordy(Scripted):
    async def complete(self, request: Request) -> Any:
        return (await super().complete(request)).text


class Plain(Scripted):
    def complete(self, request: Request) -> Any:
        return Completion("on", 1, 1, "stop")


class Unstoppable(Scripted):
    async def complete(self, request: Request) -> Completion:
        return await super().complete(replace(request, stop=()))


class Stuttering(Scripted):
    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        async for item in super().stream(request):
            yield item
            if isinstance(item, str):
                yield item


class Unending(Scripted):
    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        async for item in super().stream(request):
            if isinstance(item, str):
                yield item


class Swallowing(Scripted):
    async def complete(self, request: Request) -> Completion:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            raise RefusedError("cancelled") from None
        return await super().complete(request)


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        (Nameless(), "has no name"),
        (Endless(lambda request, draw: "on " * 300), "tokens for a prompt of .* max_tokens of 16"),
        (Uncounted(), r"counted 0 \+ "),
        (Odd(), "ended with 'tired'"),
        (Wordy(), "answered with '.*'; it must be a metropolis.llm.Completion"),
        (Plain(), r"has a complete\(\) that is no async function"),
        (Unstoppable(), "despite stop"),
        (Stuttering(), "in pieces and .* as a whole"),
        (Unending(), "streamed 0 completions"),
        (Swallowing(), "must propagate CancelledError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Scripted) else "",
)
def test_a_violation_is_found(backend: Backend, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=f"the scripted author: .*{sentence}"):
        asyncio.run(check_backend(backend))
