"""SGLang: its native `/generate` for prompts and its OpenAI route for chats, with priorities.

Start the server with `--enable-priority-scheduling --schedule-low-priority-values-first`, as
`metropolis serve sglang` does.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import msgspec

from metropolis.llm.api_keys import api_key
from metropolis.llm.backends import wire
from metropolis.llm.backends.connection import LIMITS, AnswerLimits
from metropolis.llm.backends.http import ABORT_S, JSONServer
from metropolis.llm.backends.promotion_sender import PromotionSender
from metropolis.llm.base import Completion, LLMError, MalformedError, Request

CHAT = "v1/chat/completions"
STEPS_PER_PRIORITY = 32
"""Steps share priorities, because each distinct one becomes a label of the server's metrics."""
SPECULATIVE_PRIORITY = 1 << 20
"""Added to speculative requests, which then rank below every step."""


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
    """A backend for the SGLang server at `url`, with the key SGLANG_API_KEY if that is set.

    `model` is checked against the server's; None takes the server's. So are `named`, those that
    requests may name. `sends_seed` False omits sampling seeds. Answers stay within `limits`. A
    metropolis gateway is recognised as by `Compatible`.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        named: Collection[str] = (),
        sends_seed: bool = True,
        limits: AnswerLimits = LIMITS,
    ) -> None:
        self.name = model or "default"
        self._model, self._named, self._sends_seed = model, named, sends_seed
        self._server = JSONServer(
            "SGLang",
            url.rstrip("/").removesuffix("/v1"),
            api_key("SGLANG_API_KEY"),
            limits,
        )
        self._promotions = PromotionSender(self._server, "v1/promote")
        self._rid = _new_rid()
        self._count = 0
        """The number of requests sent so far."""
        self._aborts: set[asyncio.Task[None]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out pending aborts, which belong to this process."""
        return vars(self) | {"_aborts": set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Use new request ids in another process."""
        vars(self).update(state, _rid=_new_rid())

    def __str__(self) -> str:
        return self._server.called

    async def check(self) -> None:
        """Request the server's models."""
        models = await wire.models_of(self._server, "v1/models")
        self.name = wire.choose_model(str(self), self._model, models, self._named)

    async def complete(self, request: Request) -> Completion:
        """The whole answer; cancelling aborts the request on the server."""
        body = self.body_of(request)
        with self._aborting(body["rid"]):
            if request.messages is not None:
                return await wire.complete(self._server, CHAT, body, request)
            return self._completion(
                await self._server.post("generate", body, _Generated, request), request
            )

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The pieces of the answer, then the whole."""
        body = self.body_of(request)
        if request.messages is None:
            pieces = self._stream_generate(body, request)
        else:
            pieces = wire.stream(self._server, CHAT, body, request)
        with self._aborting(body["rid"]):
            async with aclosing(pieces) as items:
                async for item in items:
                    yield item

    def promote(self, request: Request) -> None:
        """See Promoter; SGLang itself cannot change the rank of a request."""
        if self._server.is_gateway:
            self._promotions.send(request)

    async def close(self) -> None:
        """Wait for pending aborts and close all connections."""
        await asyncio.gather(*self._aborts)
        await self._promotions.cancel()
        await self._server.close()

    def body_of(self, request: Request) -> dict[str, Any]:
        """The body for `/generate` (a prompt) or `/v1/chat/completions` (a chat)."""
        priority = request.priority // STEPS_PER_PRIORITY
        if request.speculative:
            priority += SPECULATIVE_PRIORITY
        self._count += 1
        # An abort matches ids by prefix: no id may be a prefix of another.
        shared: dict[str, Any] = {
            "rid": f"{self._rid}-{request.agent}-{request.step}-{self._count}-",
            "priority": priority,
        }
        if request.messages is None:
            sampling = _sampling(request)
            if self._sends_seed:
                sampling["sampling_seed"] = request.seed
            if request.model is not None or self._server.is_gateway:  # a server has one model
                shared["model"] = request.model or self.name
            return {"text": request.prompt, "sampling_params": sampling, **shared}
        body: dict[str, Any] = {
            "model": request.model or self.name,
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
        if request.ignore_eos:
            body["ignore_eos"] = True
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
                if not event.text.startswith(text):  # every event holds the whole text so far
                    raise MalformedError(f"{self} retracted text of its answer to {request.where}")
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
        with suppress(LLMError, TimeoutError):  # nothing left to abort, or no answer
            async with asyncio.timeout(ABORT_S):
                await self._server.send("abort_request", {"rid": rid}, f"aborting {rid}")


def _new_rid() -> str:
    """A prefix for the ids of one process's requests."""
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
    if request.ignore_eos:
        parameters["ignore_eos"] = True
    return parameters
