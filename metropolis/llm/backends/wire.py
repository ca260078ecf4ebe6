"""What OpenAI-compatible servers answer, and how it becomes a Completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from metropolis.llm.base import (
    Completion,
    MalformedError,
    RefusedError,
    Request,
    UnavailableError,
)
from metropolis.llm.tokens import approximate_tokens

T = TypeVar("T")


class Server(Protocol):
    """Where JSON is sent, and comes from; failures are LLMErrors (`http.JSONServer`)."""

    @property
    def called(self) -> str:
        """How errors name it."""

    async def get(self, path: str, form: type[T]) -> T:
        """The answer to a GET."""

    async def post(self, path: str, body: Any, form: type[T], asked: str) -> T:
        """The answer to a POST of `body`."""

    def events(self, path: str, body: Any, form: type[T], asked: str) -> AsyncGenerator[T, None]:
        """The server-sent events that answer a POST of `body`."""


class Counts(msgspec.Struct):
    """The tokens of one call, as the server counts them."""

    prompt_tokens: int
    completion_tokens: int


class _Text(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: _Text = _Text()
    delta: _Text = _Text()


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: Counts | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def models_of(server: Server, path: str) -> list[str]:
    """The names of the models the server has."""
    return [model.id for model in (await server.get(path, _Models)).data]


def choose_model(called: str, wanted: str | None, models: list[str]) -> str:
    """The model to ask: the `wanted` one, or the only one there is; raises RefusedError."""
    some = ", ".join(sorted(models)[:8]) or "no model"
    if len(models) > 8:
        some += f" and {len(models) - 8} more"
    if wanted is not None and wanted not in models:
        raise RefusedError(f"{called} has no model {wanted!r}; it serves {some}")
    if wanted is None and len(models) != 1:
        raise RefusedError(f"{called} serves {some}; say which with --model")
    return wanted or models[0]


async def ask(server: Server, path: str, body: Mapping[str, Any], asked: Request) -> Completion:
    """The whole answer to `body`."""
    answer = await server.post(path, body, _Answer, asked.where)
    if not answer.choices:
        raise MalformedError(f"{server.called} gave a malformed answer to {asked.where}: no choice")
    choice = answer.choices[0]
    text = (choice.text if asked.messages is None else choice.message.content) or ""
    return completion_of(server.called, text, answer.usage, choice.finish_reason, asked)


async def stream(
    server: Server, path: str, body: Mapping[str, Any], asked: Request
) -> AsyncGenerator[str | Completion, None]:
    """The pieces of the answer to `body`, and at last the whole."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    pieces: list[str] = []
    finish = counts = None
    async for event in server.events(path, streamed, _Answer, asked.where):
        counts = event.usage or counts
        for choice in event.choices:
            finish = choice.finish_reason or finish
            piece = choice.text if asked.messages is None else choice.delta.content
            if piece:
                pieces.append(piece)
                yield piece
    yield completion_of(server.called, "".join(pieces), counts, finish, asked)


def completion_of(
    called: str, text: str, counts: Counts | None, finish: str | None, asked: Request
) -> Completion:
    """The completion; raises LLMError when the answer ended for another reason than it should.

    Where the server does not count tokens, they are approximated.
    """
    if finish is None:
        raise MalformedError(f"{called} broke off its answer to {asked.where}")
    if finish == "abort":
        raise UnavailableError(f"{called} aborted its answer to {asked.where}")
    if finish not in ("stop", "length"):
        raise RefusedError(f"{called} ended its answer to {asked.where} with {finish!r}")
    if counts is None:
        counts = Counts(approximate_tokens(asked.text), approximate_tokens(text))
    return Completion(text, counts.prompt_tokens, counts.completion_tokens, finish)


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """How a chat is told to answer in JSON."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}
