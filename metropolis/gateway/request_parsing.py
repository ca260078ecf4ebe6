"""Parses requests and answers, and adds fields to bodies, the gateway's only change to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import msgspec

from metropolis.gateway.json_shape import check_shape
from metropolis.llm.placement import NAME_CHARACTERS_MAX, PREFIX, is_name
from metropolis.llm.tokens import CHARACTERS_PER_TOKEN
from metropolis.types import MetropolisError

EMPTY = re.compile(rb"\s*\{\s*\}\s*")
"""An object without members."""
USAGE = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})(?=[\s,}])')
"""Responses and messages use the second name."""
PIECE_CHARACTERS = 1024
"""Size of a piece; prompts share whole pieces of their texts."""
PIECES_MAX = 2048
"""Pieces in which shared prefixes are detected: some 500,000 tokens of text."""
USAGE_BYTES = 2048
"""Size of an answer's end that contains its usage."""


class _Body(msgspec.Struct):
    """Fields of chats, completions, responses, Anthropic's messages and SGLang's /generate."""

    messages: Any = None
    prompt: Any = None
    tools: Any = None
    user: Any = None
    input: Any = None
    instructions: Any = None
    previous_response_id: Any = None
    system: Any = None
    metadata: Any = None
    text: Any = None
    input_ids: Any = None

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The messages of a chat in any format, the system's first."""
        said = self.messages if self.input is None else self.input
        turns = [{"role": "user", "content": said}] if isinstance(said, str) else said
        turns = (
            [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
        )
        system = self.instructions or self.system
        return [{"role": "system", "content": system}, *turns] if turns and system else turns

    @property
    def plain(self) -> Any:
        """The prompt of a request that is no chat."""
        fields = self.prompt, self.text, self.input_ids, self.input
        return next((field for field in fields if field is not None), None)

    @property
    def owner(self) -> str | None:
        """The program that the body names as its user."""
        ids = self.metadata.get("user_id") if isinstance(self.metadata, dict) else None
        names = (name for name in (self.user, ids) if isinstance(name, str) and is_name(name))
        return next(names, None)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request's place in its program, from headers and body; None where they do not say."""

    program: str | None
    function: str
    is_guessed: bool
    """The function was inferred (no header)."""
    upstream: str | None
    step: int
    stages_left: int | None
    is_last: bool
    """It ends its program."""
    opening: bytes | None
    """Digest of the messages before the model's first, the same throughout a conversation."""
    is_continued: bool
    """It contains an earlier answer of the model."""
    prompt_tokens: int
    """Approximately."""
    previous: str | None
    """The id of the response that it continues, which an engine stores."""
    prefix: tuple[tuple[int, int], ...]
    """The first pieces of its prompt: (digest, approximate number of tokens) of each."""


def read(headers: Mapping[str, str], body: bytes) -> ParsedRequest:
    """Parse a request; raises MetropolisError on a body that is no JSON object or is too costly to
    decode, and on an invalid header."""
    check_shape(body)
    try:
        if not body.isascii():
            body.decode()  # msgspec does not validate the bytes of fields that it skips
        return _read(headers, msgspec.json.decode(body, type=_Body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetropolisError(f"the body is not a JSON object: {error}") from None
    except RecursionError:
        raise MetropolisError("the body is nested too deep; flatten it") from None


def _read(headers: Mapping[str, str], said: _Body) -> ParsedRequest:
    messages = said.turns
    turns = [_role(message) for message in messages]
    opening = turns.index("assistant") if "assistant" in turns else len(turns)
    previous = said.previous_response_id
    function = _name(headers, "Function")
    parts = list(_each(messages or [said.plain]))
    tools = [_piece(said.tools, _written(said.tools))] if said.tools else []
    pieces = [*tools, *chain.from_iterable(parts)]
    guess = "chat" if messages else "completion"
    if turns and turns[0] in ("system", "developer"):  # it differs by agent
        guess = f"system-{_digest(parts[:1]).hex()[:8]}"
    return ParsedRequest(
        _name(headers, "Program") or said.owner,
        function or guess,
        function is None,
        _name(headers, "Upstream"),
        _integer(headers, "Step") or 0,
        _integer(headers, "Stages-Left"),
        headers.get(f"{PREFIX}End", "").lower() in ("1", "true", "yes"),
        _digest(parts[:opening]) if messages else None,
        opening < len(turns),
        max(1, sum(tokens for _, tokens in pieces)),
        previous if isinstance(previous, str) else None,
        tuple(pieces[:PIECES_MAX]),
    )


def of_tenant(asked: ParsedRequest, tenant: str) -> ParsedRequest:
    """Make program and conversation unique to `tenant`; an empty `tenant` changes nothing."""
    if not tenant:
        return asked
    opening = None if asked.opening is None else asked.opening + tenant.encode()
    program = None if asked.program is None else f"{tenant} {asked.program}"
    return replace(asked, program=program, opening=opening)


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """Append `fields` to the JSON object `body`, where they override earlier ones."""
    return b"".join(parts_with_fields(body, fields))


def parts_with_fields(body: bytes, fields: Mapping[str, Any]) -> tuple[bytes | memoryview, ...]:
    """Like `with_fields`, in parts: a large body is copied once, when its request is written."""
    if not fields:
        return (body,)
    comma = b"" if EMPTY.fullmatch(body) else b","
    return memoryview(body.rstrip())[:-1], comma, msgspec.json.encode(fields)[1:]


def output_tokens_in(end: bytes) -> int | None:
    """Return the number of output tokens given at the `end` of an answer, or None."""
    found = USAGE.findall(end[-USAGE_BYTES:])
    return int(found[-1]) if found else None


def _role(turn: dict[str, Any]) -> Any:
    """Return the speaker; items of responses without a role are the model's or a tool's."""
    if "role" in turn:
        return turn["role"]
    kind = str(turn.get("type", ""))
    return "tool" if kind.endswith("_output") or kind == "item_reference" else "assistant"


def _name(headers: Mapping[str, str], name: str) -> str | None:
    written = headers.get(PREFIX + name)
    if not written:
        return None
    if not is_name(written):
        begin = written[:20]
        raise MetropolisError(
            f"header {PREFIX}{name} begins with {begin!r}; write a name of at most "
            f"{NAME_CHARACTERS_MAX} printable characters in UTF-8"
        )
    return written


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    written = headers.get(PREFIX + name)
    if written is None:
        return None
    if not written.isdecimal() or len(written) > 15:
        begin = written[:20]
        raise MetropolisError(f"header {PREFIX}{name} is {begin!r}; write a number from 0 up")
    return int(written)


def _pieces(said: Any) -> Iterator[tuple[int, int]]:
    """Yield pieces of a prompt or message: text is split, an image is one piece of no length."""
    if isinstance(said, str):
        for text in _cut(said, PIECE_CHARACTERS):
            yield _piece(text, len(text))
    elif isinstance(said, list) and all(isinstance(one, int) for one in said):
        for ids in _cut(said, PIECE_CHARACTERS // CHARACTERS_PER_TOKEN):
            yield _piece(ids, len(ids) * CHARACTERS_PER_TOKEN)
    elif isinstance(said, list):
        yield from chain.from_iterable(_each(said))
    elif isinstance(said, dict):
        name = "content" if said.get("content") else "text"
        frame = {key: value for key, value in said.items() if key != name}
        calls = frame.get("tool_calls")
        yield _piece(frame, _written(calls) if calls else 0)
        yield from _pieces(said.get(name))


def _each(many: list[Any]) -> Iterator[list[tuple[int, int]]]:
    """Yield the pieces of each item; items beyond PIECES_MAX form one piece."""
    for one in many[:PIECES_MAX]:
        yield list(_pieces(one))
    if rest := many[PIECES_MAX:]:
        yield [_piece(rest, _written(rest))]


def _cut(said: Any, length: int) -> Iterator[Any]:
    """Split a text or list into pieces of `length`; the rest beyond PIECES_MAX is one more."""
    end = PIECES_MAX * length
    for begin in range(0, min(end, len(said)), length):
        yield said[begin : begin + length]
    if rest := said[end:]:
        yield rest


def _piece(said: Any, characters: int) -> tuple[int, int]:
    """Return a piece's digest and its approximate number of tokens, at least one."""
    digest = hashlib.blake2b(msgspec.json.encode(said), digest_size=8).digest()
    return int.from_bytes(digest, "big"), characters // CHARACTERS_PER_TOKEN + 1


def _written(said: Any) -> int:
    """Return the number of characters of tools and their calls as templates write them."""
    return len(msgspec.json.encode(said).decode())


def _digest(parts: list[list[tuple[int, int]]]) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()
