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

from metropolis.llm.backends import wire
from metropolis.llm.backends.connection import LIMITS, AnswerLimits
from metropolis.llm.backends.http import ABORT_S, JSONServer
from metropolis.llm.base import Completion, LLMError, MalformedError, Request

CHAT = "v1/chat/completions"
STEPS_PER_PRIORITY = 32
"""Every distinct priority becomes a label of the server's metrics, so steps share them."""
SPECULATIVE_PRIORITY = 1 << 20
"""Below the priority of any step."""


class _Finish(msgspec.Struct):
    type: str


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None
    prompt_tokens: Any = None
    completion_tokens: Any = None


class _Generated(msgspec.Struct):
    text: str
    meta_info: _Meta


class SGLang:
    """A backend before the SGLang server at `url`; a key, if it wants one, is SGLANG_API_KEY's.

    `model` is checked against what the server serves; None takes what is there. `sends_seed`
    False leaves out sampling seeds. Answers stay within `limits`. A gateway of metropolis is
    recognised as by `Compatible`.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        sends_seed: bool = True,
        limits: AnswerLimits = LIMITS,
    ) -> None:
        self.name = model or "default"
        self._wanted, self._sends_seed = model, sends_seed
        self._server = JSONServer(
            "SGLang",
            url.rstrip("/").removesuffix("/v1"),
            os.environ.get("SGLANG_API_KEY"),
            limits,
        )
        self._rid = _new_rid()
        self._count = count()
        self._aborts: set[asyncio.Task[None]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """What this process sends is its own."""
        return vars(self) | {"_aborts": set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew in another process."""
        vars(self).update(state, _rid=_new_rid())

    def __str__(self) -> str:
        return self._server.called

    async def check(self) -> None:
        """Ask the server for its models."""
        models = await wire.models_of(self._server, "v1/models")
        self.name = wire.choose_model(str(self), self._wanted, models)

    async def complete(self, request: Request) -> Completion:
        """The whole answer; the server is told when nobody waits for it any more."""
        body = self.body_of(request)
        with self._aborting(body["rid"]):
            if request.messages is not None:
                return await wire.ask(self._server, CHAT, body, request)
            return self._completion(
                await self._server.post("generate", body, _Generated, request), request
            )

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer's pieces, and at last the whole."""
        body = self.body_of(request)
        if request.messages is None:
            pieces = self._stream_generate(body, request)
        else:
            pieces = wire.stream(self._server, CHAT, body, request)
        with self._aborting(body["rid"]):
            async with aclosing(pieces) as items:
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
        shared = {  # an abort hits every id that begins with its own: none begins another
            "rid": f"{self._rid}-{request.agent}-{request.step}-{next(self._count)}-",
            "priority": priority,
        }
        if request.messages is None:
            sampling = _sampling(request)
            if self._sends_seed:
                sampling["sampling_seed"] = request.seed
            return {"text": request.prompt, "sampling_params": sampling, **shared}
        body: dict[str, Any] = {
            "model": self.name,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            **shared,
        }
        if self._sends_seed:
            body["seed"] = request.seed
        if request.stop:
            body["stop"] = request.stop
        if request.regex is not None:
            body["regex"] = request.regex
        if request.json_schema is not None:
            body["response_format"] = wire.response_format(request.json_schema)
        return body

    async def _stream_generate(
        self, body: dict[str, Any], request: Request
    ) -> AsyncGenerator[str | Completion, None]:
        text, last = "", None
        streamed = {**body, "stream": True}
        async with aclosing(
            self._server.events("generate", streamed, _Generated, request)
        ) as events:
            async for event in events:
                if last is not None:
                    continue
                if not event.text.startswith(text):  # every event holds all the text so far
                    raise MalformedError(f"{self} took back text of its answer to {request.where}")
                self._server.meter.check_length(len(event.text), request)
                piece, text = event.text[len(text) :], event.text
                if piece:
                    yield piece
                if event.meta_info.finish_reason is not None:
                    last = event
        if last is not None:
            yield self._completion(last, request)

    def _completion(self, answer: _Generated, request: Request) -> Completion:
        meta = answer.meta_info
        finish = None if meta.finish_reason is None else meta.finish_reason.type
        usage = {
            "prompt_tokens": meta.prompt_tokens,
            "completion_tokens": meta.completion_tokens,
        }
        return wire.completion_of(self._server.meter, answer.text, 0, usage, finish, request)

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
        with suppress(LLMError, TimeoutError):  # it has nothing left to free, or will not listen
            async with asyncio.timeout(ABORT_S):
                await self._server.send("abort_request", {"rid": rid}, f"aborting {rid}")


def _new_rid() -> str:
    """What the ids of one process's requests begin with."""
    return f"metropolis-{uuid.uuid4().hex[:12]}"


def _sampling(request: Request) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "max_new_tokens": request.max_tokens,
        "temperature": request.temperature,
    }
    if request.stop:
        parameters["stop"] = request.stop
    if request.regex is not None:
        parameters["regex"] = request.regex
    if request.json_schema is not None:
        parameters["json_schema"] = msgspec.json.encode(request.json_schema).decode()
    return parameters
