"""What the gateway reads in requests and answers, and the one way in which it changes a body."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from metropolis.llm.tokens import CHARACTERS_PER_TOKEN
from metropolis.types import MetropolisError

PREFIX = "X-Metropolis-"
"""Of the headers a client may send: Program, Function, Upstream, Step, Stages-Left, End."""
NAME_CHARACTERS_MAX = 200
"""Metrics and policies keep names."""
USAGE = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
PIECE_BYTES = 1024
"""Prompts share whole pieces of their messages."""
USAGE_BYTES = 2048
"""Usage stands in the last bytes of an answer."""


class _Body(msgspec.Struct):
    messages: Any = None
    prompt: Any = None
    user: Any = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's place in its program, as headers and body tell it; None: nobody has said."""

    program: str | None
    function: str
    is_guessed: bool
    """The function is: no header names it."""
    upstream: str | None
    step: int
    stages_left: int | None
    is_last: bool
    """Its program ends with it."""
    opening: bytes | None
    """A digest of the messages before the model's first: all of a conversation share it."""
    is_continued: bool
    """The model has spoken in it before."""
    prompt_tokens: int
    """Approximately."""
    prefix: tuple[tuple[int, int], ...]
    """Its prompt in pieces: a digest of each, and about how many tokens it has."""


def read(headers: Mapping[str, str], body: bytes) -> Asked:
    """What is asked; raises MetropolisError on a body that is no JSON object or a bad header."""
    try:
        return _read(headers, msgspec.json.decode(body, type=_Body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetropolisError(f"the body is not a JSON object: {error}") from None
    except RecursionError:
        raise MetropolisError("the body is nested too deep; flatten it") from None


def _read(headers: Mapping[str, str], said: _Body) -> Asked:
    messages = said.messages if isinstance(said.messages, list) else []
    messages = [message for message in messages if isinstance(message, dict)]
    turns = [message.get("role") for message in messages]
    opening = turns.index("assistant") if "assistant" in turns else len(turns)
    user = said.user if isinstance(said.user, str) and _is_name(said.user) else None
    function = _name(headers, "Function")
    texts = [msgspec.json.encode(message) for message in messages or [said.prompt]]
    return Asked(
        _name(headers, "Program") or user,
        function or _function(messages),
        function is None,
        _name(headers, "Upstream"),
        _integer(headers, "Step") or 0,
        _integer(headers, "Stages-Left"),
        headers.get(f"{PREFIX}End", "").lower() in ("1", "true", "yes"),
        _digest(messages[:opening]) if messages else None,
        opening < len(turns),
        (_characters(messages) + _characters(said.prompt)) // CHARACTERS_PER_TOKEN + 1,
        tuple(piece for text in texts for piece in _pieces(text)),
    )


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """`body`, a JSON object, with `fields` at its end, where they win over former ones."""
    if not fields:
        return body
    head = body.rstrip()[:-1]
    comma = b"" if head.strip() == b"{" else b","
    return head + comma + msgspec.json.encode(fields)[1:]


def output_tokens_in(end: bytes) -> int | None:
    """What the `end` of an answer says of its length; None when it says nothing."""
    found = USAGE.findall(end[-USAGE_BYTES:])
    return int(found[-1]) if found else None


def _name(headers: Mapping[str, str], name: str) -> str | None:
    written = headers.get(PREFIX + name)
    if not written:
        return None
    if not _is_name(written):
        begin = written[:20]
        raise MetropolisError(
            f"header {PREFIX}{name} begins with {begin!r}; write a name of at most "
            f"{NAME_CHARACTERS_MAX} printable characters in UTF-8"
        )
    return written


def _is_name(text: str) -> bool:
    """Bytes of a header that are no UTF-8 come as surrogates, which are not printable."""
    is_short = 0 < len(text) <= NAME_CHARACTERS_MAX
    return is_short and text.isprintable() and text == text.strip()


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    written = headers.get(PREFIX + name)
    if written is None:
        return None
    if not written.isdecimal() or len(written) > 15:
        raise MetropolisError(f"header {PREFIX}{name} is {written!r}; write a number from 0 up")
    return int(written)


def _function(messages: list[dict[str, Any]]) -> str:
    """Agents of a framework differ in their system prompts."""
    if messages and messages[0].get("role") in ("system", "developer"):
        return f"system-{_digest(messages[:1]).hex()[:8]}"
    return "chat" if messages else "completion"


def _digest(messages: list[dict[str, Any]]) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(messages), digest_size=16).digest()


def _pieces(text: bytes) -> Iterator[tuple[int, int]]:
    for begin in range(0, len(text), PIECE_BYTES):
        piece = text[begin : begin + PIECE_BYTES]
        digest = int.from_bytes(hashlib.blake2b(piece, digest_size=8).digest(), "big")
        yield digest, len(piece) // CHARACTERS_PER_TOKEN + 1


def _characters(said: Any) -> int:
    """Of all texts within; pictures and token numbers count as one each."""
    if isinstance(said, str):
        return len(said)
    if isinstance(said, list):
        return sum(map(_characters, said))
    if isinstance(said, dict):
        return _characters(said.get("content") or said.get("text"))
    return CHARACTERS_PER_TOKEN if isinstance(said, int) else 0
