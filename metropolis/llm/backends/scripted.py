"""An offline author in place of a model: deterministic, free and immediate."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from math import ceil, floor
from typing import Any

import msgspec

from metropolis.llm.base import Completion, RefusedError, Request
from metropolis.llm.tokens import approximate_tokens, truncated
from metropolis.names import cut
from metropolis.types import MetropolisError

SCRIPTED = "scripted"
Author = Callable[[Request, random.Random], str]
"""Writes an answer with a random generator that is seeded by the request's seed."""

_WHO = ("I", "We", "My neighbours", "Most of us", "Some old friends")
_DO = ("remember", "talk about", "plan", "wonder about", "look forward to", "care about")
_WHAT = ("the market", "a long walk", "the news of the day", "dinner", "this work", "the weather")
_WHEN = ("this morning", "before noon", "after lunch", "in the evening", "as ever", "for a while")


def plain_author(request: Request, draw: random.Random) -> str:
    """One to three plain sentences, or a value that fits the request's JSON schema."""
    if request.json_schema is not None:
        try:
            return msgspec.json.encode(_value(request.json_schema, request, draw)).decode()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"the JSON schema {cut(request.json_schema, 200)}"
            raise _unsupported(request, what) from error
    if request.regex is not None:
        raise _unsupported(request, "a regex")
    return " ".join(_sentence(draw) for _ in range(draw.randint(1, 3)))


class Scripted:
    """A backend whose answers `author` writes.

    Tokens are counted by `approximate_tokens`; `stop` and `max_tokens` truncate as on a server.
    """

    def __init__(self, author: Author | None = None, *, name: str = SCRIPTED) -> None:
        self.author = author or plain_author
        self.name = name

    def __str__(self) -> str:
        return "the scripted author"

    async def check(self) -> None:
        """Nothing to check."""

    async def complete(self, request: Request) -> Completion:
        """The author's text, truncated."""
        return self.written(request)

    def written(self, request: Request) -> Completion:
        """See `complete`."""
        text: Any = self.author(request, random.Random(request.seed))
        if not isinstance(text, str):
            raise MetropolisError(
                f"{self}: the author returned {cut(text)} for {request.where}; it should be a text"
            )
        for stop in request.stop:
            text = text.split(stop, 1)[0]
        answer, tokens = truncated(text, request.max_tokens)
        finish_reason = "stop" if answer == text else "length"
        return Completion(answer, approximate_tokens(request.text), tokens, finish_reason)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer word by word."""
        completion = await self.complete(request)
        for word in re.findall(r"\s*\S+|\s+", completion.text):
            yield word
        yield completion

    async def close(self) -> None:
        """Nothing to free."""


def _sentence(draw: random.Random) -> str:
    return " ".join(draw.choice(words) for words in (_WHO, _DO, _WHAT, _WHEN)) + "."


def _value(schema: Mapping[str, Any], request: Request, draw: random.Random) -> Any:
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: _value(field, request, draw) for name, field in fields.items()}
        case "array":
            least, most = _bounds(schema.get("minItems"), schema.get("maxItems"), 1, 2)
            count = draw.randint(least, most)
            return [_value(schema["items"], request, draw) for _ in range(count)]
        case "integer" | "number" as kind:
            least, most = _bounds(schema.get("minimum"), schema.get("maximum"), 0, 9)
            if kind == "integer":
                return draw.randint(ceil(least), floor(most))
            return draw.uniform(least, most)
        case "boolean":
            return draw.random() < 0.5
        case "string":
            return _sentence(draw)
        case other:
            raise _unsupported(request, f"a JSON schema of type {other!r}")


def _bounds(least: Any, most: Any, usual: int, span: int) -> tuple[Any, Any]:
    """Return the bounds of a number, of which either may be None.

    A missing minimum is the usual one, or `most` if that is less; a missing maximum is `span` more
    than the minimum.
    """
    if least is None and most is None:
        least = usual
    elif least is None:
        least = min(usual, most)
    if most is None:
        most = least + span
    return least, most


def _unsupported(request: Request, what: str) -> RefusedError:
    return RefusedError(
        f"the scripted author cannot follow {what}, which {request.where} requires; "
        "give Scripted your own author"
    )
