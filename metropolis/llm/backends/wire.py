"""Answers of OpenAI-compatible servers, and their conversion to Completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec

from metropolis.llm.backends.http import SHOWN_CHARACTERS, printable
from metropolis.llm.backends.meter import Meter
from metropolis.llm.base import (
    Completion,
    LLMError,
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
        """The counter of the tokens in the server's answers."""

    def without_key(self, text: str) -> str:
        """`text` with the key that requests carry hidden."""

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
    message: _Text | None = None
    delta: _Text | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    """What a gateway or a server sends in place of an answer that has begun."""


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
    choices = _choices(answer, server, request)
    if not choices:
        raise MalformedError(
            f"{server.called} gave a malformed answer to {request.where}: no choice"
        )
    choice, message = choices[0], choices[0].message or _Text()
    text = (choice.text if request.messages is None else message.content) or ""
    hidden = message.hidden
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
            for choice in _choices(event, server, request)[:1]:
                finish, delta = choice.finish_reason or finish, choice.delta or _Text()
                hidden += delta.hidden
                piece = choice.text if request.messages is None else delta.content
                if piece:
                    text_bytes += len(piece.encode(errors="replace"))
                    server.meter.check_length(text_bytes, request)
                    pieces.append(piece)
                    yield piece
    yield completion_of(server.meter, "".join(pieces), hidden, usage, finish, request)


def _choices(answer: _Answer, server: Server, request: Request) -> list[_Choice]:
    """The choices of an answer or event; raises LLMError if it is an error, or has none."""
    if answer.error is not None:
        about = answer.error if isinstance(answer.error, dict) else {"message": answer.error}
        code = about.get("code")
        reason = printable(server.without_key(str(about.get("message"))), SHOWN_CHARACTERS)
        is_final = type(code) is int and 400 <= code < 500 and code not in (408, 429)
        kind = RefusedError if is_final else UnavailableError
        sentence = f"{server.called} ended its answer to {request.where} with an error: {reason}"
        raise kind(sentence)
    if answer.choices is None:
        raise MalformedError(
            f"{server.called} gave a malformed answer to {request.where}: no choices"
        )
    return answer.choices


def completion_of(
    meter: Meter, text: str, hidden: int, usage: Any, finish: str | None, request: Request
) -> Completion:
    """The completion; raises LLMError unless the finish reason is `stop` or `length`.

    `hidden` characters of reasoning are not in `text`; for `usage` see `Meter.counts`.
    """
    called = meter.called
    if finish is None:
        raise MalformedError(f"{called} broke off its answer to {request.where}")
    meter.check_length(len(text.encode(errors="replace")), request)
    tokens = meter.counts(usage, text, hidden, request)
    if finish in ("stop", "length"):
        return Completion(text, *tokens, finish)
    error: LLMError
    if finish == "abort":
        error = UnavailableError(f"{called} aborted its answer to {request.where}")
    else:
        reason = repr(finish[:NAME_CHARACTERS])
        error = RefusedError(f"{called} ended its answer to {request.where} with {reason}")
    error.tokens = tokens
    raise error


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field that makes a chat answer in JSON."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}
