"""Answers of OpenAI-compatible servers, and their conversion to Completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec

from metropolis.llm.backends.meter import Meter
from metropolis.llm.base import (
    Completion,
    MalformedError,
    RefusedError,
    Request,
    UnavailableError,
)
from metropolis.names import shortened

NAME_CHARACTERS = 80
"""Maximum length in messages of a server's model names and finish reasons."""

T = TypeVar("T")


class Server(Protocol):
    """Exchanges JSON with a server; failures are LLMErrors (`http.JSONServer`)."""

    @property
    def called(self) -> str:
        """The server's name in errors."""

    @property
    def meter(self) -> Meter:
        """Counts the tokens of the server's answers."""

    async def get(self, path: str, form: type[T]) -> T:
        """The answer to a GET."""

    async def post(self, path: str, body: Any, form: type[T], request: Request) -> T:
        """The answer to a POST of `body`."""

    def events(
        self, path: str, body: Any, form: type[T], request: Request
    ) -> AsyncGenerator[T, None]:
        """The server-sent events that answer a POST of `body`."""


class ConnectedServer(Server, Protocol):
    """A server that owns its connections."""

    @property
    def is_gateway(self) -> bool:
        """Whether the latest GET found a metropolis gateway: requests then carry its headers."""

    async def close(self) -> None:
        """Close all connections."""


class _Text(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None

    @property
    def hidden(self) -> int:
        """Characters of reasoning, which vLLM and SGLang send separately."""
        thoughts = self.reasoning_content or self.reasoning
        return len(thoughts) if isinstance(thoughts, str) else 0


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: _Text = _Text()
    delta: _Text = _Text()


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def models_of(server: Server, path: str) -> list[str]:
    """The names of the server's models."""
    return [model.id for model in (await server.get(path, _Models)).data]


def choose_model(
    called: str, wanted: str | None, models: list[str], named: Collection[str] = ()
) -> str:
    """The `wanted` model, or the server's only one.

    Raises RefusedError if there is none, or if the server lacks a `named` one.
    """
    served = shortened([name[:NAME_CHARACTERS] for name in sorted(models)], 8) or "no model"
    for name in sorted(named) if wanted is None else [wanted, *sorted(named)]:
        if name not in models:
            raise RefusedError(f"{called} has no model {name!r}; it serves {served}")
    if wanted is None and len(models) != 1:
        raise RefusedError(f"{called} serves {served}; choose one with --model")
    return wanted or models[0]


async def complete(
    server: Server, path: str, body: Mapping[str, Any], request: Request
) -> Completion:
    """The whole answer to `body`."""
    answer = await server.post(path, body, _Answer, request)
    if not answer.choices:
        raise MalformedError(
            f"{server.called} gave a malformed answer to {request.where}: no choice"
        )
    choice = answer.choices[0]
    text = (choice.text if request.messages is None else choice.message.content) or ""
    hidden = choice.message.hidden
    return completion_of(server.meter, text, hidden, answer.usage, choice.finish_reason, request)


async def stream(
    server: Server, path: str, body: Mapping[str, Any], request: Request
) -> AsyncGenerator[str | Completion, None]:
    """The pieces of the answer to `body`, then the whole."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    pieces: list[str] = []
    finish = usage = None
    hidden = text_bytes = 0
    async with aclosing(server.events(path, streamed, _Answer, request)) as events:
        async for event in events:
            usage = event.usage or usage
            for choice in event.choices[:1]:
                finish = choice.finish_reason or finish
                hidden += choice.delta.hidden
                piece = choice.text if request.messages is None else choice.delta.content
                if piece:
                    text_bytes += len(piece.encode(errors="replace"))
                    server.meter.check_length(text_bytes, request)
                    pieces.append(piece)
                    yield piece
    yield completion_of(server.meter, "".join(pieces), hidden, usage, finish, request)


def completion_of(
    meter: Meter, text: str, hidden: int, usage: Any, finish: str | None, request: Request
) -> Completion:
    """The completion; raises LLMError unless the finish reason is `stop` or `length`.

    `hidden` characters of reasoning are not in `text`; for `usage` see `Meter.counts`.
    """
    called = meter.called
    if finish is None:
        raise MalformedError(f"{called} broke off its answer to {request.where}")
    if finish == "abort":
        raise UnavailableError(f"{called} aborted its answer to {request.where}")
    if finish not in ("stop", "length"):
        reason = repr(finish[:NAME_CHARACTERS])
        raise RefusedError(f"{called} ended its answer to {request.where} with {reason}")
    meter.check_length(len(text.encode(errors="replace")), request)
    return Completion(text, *meter.counts(usage, text, hidden, request), finish)


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field that makes a chat answer in JSON."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}
