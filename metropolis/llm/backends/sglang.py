"""SGLang: its native `/generate` for prompts, its OpenAI route for chats, with priorities.

Start the server with `--enable-priority-scheduling --schedule-low-priority-values-first`, as
`metropolis serve sglang` does.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from itertools import count
from typing import Any

import msgspec

from metropolis.llm.backends.http import JSONServer
from metropolis.llm.base import (
    Completion,
    LLMError,
    MalformedError,
    RefusedError,
    Request,
    UnavailableError,
)

STEPS_PER_PRIORITY = 32
"""Every distinct priority becomes a label of the server's metrics, so steps share them."""
SPECULATIVE_PRIORITY = 1 << 20
"""Below the priority of any step."""


class _Finish(msgspec.Struct):
    type: str


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Meta(_Usage):
    finish_reason: _Finish | None


class _Generated(msgspec.Struct):
    text: str
    meta_info: _Meta


class _Text(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None
    message: _Text = _Text()
    delta: _Text = _Text()


class _Chat(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class SGLang:
    """A backend before the SGLang server at `url`; a key, if it wants one, is SGLANG_API_KEY's.

    `model` is checked against what the server serves; None takes what is there.
    """

    def __init__(self, url: str, model: str | None = None) -> None:
        self.name = model or "default"
        self._wanted = model
        self._server = JSONServer(
            "SGLang", url.rstrip("/").removesuffix("/v1"), os.environ.get("SGLANG_API_KEY")
        )
        self._rid = f"metropolis-{uuid.uuid4().hex[:12]}"
        self._count = count()
        self._aborts: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return self._server.called

    async def check(self) -> None:
        """Ask the server for its models."""
        models = [model.id for model in (await self._server.get("v1/models", _Models)).data]
        if self._wanted is not None and self._wanted not in models:
            raise RefusedError(
                f"{self} has no model {self._wanted!r}; it serves {', '.join(models)}"
            )
        self.name = self._wanted or models[0]

    async def complete(self, request: Request) -> Completion:
        """The whole answer; the server is told when nobody waits for it any more."""
        body = self.body_of(request)
        with self._aborting(body["rid"]):
            if request.messages is None:
                return self._generated(
                    await self._server.post("generate", body, _Generated, request.where), request
                )
            chat = await self._server.post("v1/chat/completions", body, _Chat, request.where)
        return self._chatted(chat, request)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer's pieces, and at last the whole."""
        body = self.body_of(request) | {"stream": True}
        pieces = self._stream_generate if request.messages is None else self._stream_chat
        with self._aborting(body["rid"]):
            async with aclosing(pieces(body, request)) as items:
                async for item in items:
                    yield item

    async def close(self) -> None:
        """Wait for aborts on their way and close all connections."""
        await asyncio.gather(*self._aborts)
        await self._server.close()

    def body_of(self, request: Request) -> dict[str, Any]:
        """What is sent to `/generate` for a prompt, to `/v1/chat/completions` for a chat."""
        priority = request.priority // STEPS_PER_PRIORITY
        if request.speculative:
            priority += SPECULATIVE_PRIORITY
        shared = {
            "rid": f"{self._rid}-{request.agent}-{request.step}-{next(self._count)}",
            "priority": priority,
        }
        if request.messages is None:
            return {"text": request.prompt, "sampling_params": _sampling(request), **shared}
        body: dict[str, Any] = {
            "model": self.name,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            **shared,
        }
        if request.stop:
            body["stop"] = request.stop
        if request.regex is not None:
            body["regex"] = request.regex
        if request.json_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.json_schema},
            }
        return body

    async def _stream_generate(
        self, body: dict[str, Any], request: Request
    ) -> AsyncGenerator[str | Completion, None]:
        text = ""
        async for event in self._server.events("generate", body, _Generated, request.where):
            if len(event.text) > len(text):
                yield event.text[len(text) :]
                text = event.text
            if event.meta_info.finish_reason is not None:
                yield self._generated(event, request)

    async def _stream_chat(
        self, body: dict[str, Any], request: Request
    ) -> AsyncGenerator[str | Completion, None]:
        pieces: list[str] = []
        finish = ""
        body |= {"stream_options": {"include_usage": True}}
        async for event in self._server.events("v1/chat/completions", body, _Chat, request.where):
            for choice in event.choices:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    pieces.append(choice.delta.content)
                    yield choice.delta.content
            if event.usage is not None:
                yield self._completion("".join(pieces), event.usage, finish, request)

    def _generated(self, answer: _Generated, request: Request) -> Completion:
        finish = answer.meta_info.finish_reason
        return self._completion(
            answer.text, answer.meta_info, finish.type if finish else "", request
        )

    def _chatted(self, answer: _Chat, request: Request) -> Completion:
        if not answer.choices or answer.usage is None:
            raise MalformedError(f"{self} gave a malformed answer to {request.where}: it is empty")
        choice = answer.choices[0]
        return self._completion(
            choice.message.content or "", answer.usage, choice.finish_reason or "", request
        )

    def _completion(self, text: str, usage: _Usage, finish: str, request: Request) -> Completion:
        if finish not in ("stop", "length"):
            raise UnavailableError(
                f"{self} ended its answer to {request.where} with {finish or 'no reason'!r}"
            )
        return Completion(text, usage.prompt_tokens, usage.completion_tokens, finish)

    @contextmanager
    def _aborting(self, rid: str) -> Iterator[None]:
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            abort = asyncio.get_running_loop().create_task(self._abort(rid))
            self._aborts.add(abort)
            abort.add_done_callback(self._aborts.discard)
            raise

    async def _abort(self, rid: str) -> None:
        with suppress(LLMError):  # a server that cannot be told has nothing left to free
            await self._server.send("abort_request", {"rid": rid}, f"aborting {rid}")


def _sampling(request: Request) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "max_new_tokens": request.max_tokens,
        "temperature": request.temperature,
        "sampling_seed": request.seed,
    }
    if request.stop:
        parameters["stop"] = request.stop
    if request.regex is not None:
        parameters["regex"] = request.regex
    if request.json_schema is not None:
        parameters["json_schema"] = msgspec.json.encode(request.json_schema).decode()
    return parameters
