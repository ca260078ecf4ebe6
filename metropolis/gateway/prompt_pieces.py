"""Digests of a prompt's pieces: prompts that begin alike share their first pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from metropolis.llm.tokens import CHARACTERS_PER_TOKEN

PIECE_CHARACTERS = 1024
"""Size of a piece; prompts share whole pieces of their texts."""
PIECES_MAX = 2048
"""Pieces in which shared prefixes are detected: some 500,000 tokens of text."""

TEXTS = ("content", "text", "output")
"""Members of messages and their parts that contain texts; responses call a tool's text `output`."""
CALLS = ("tool_calls", "arguments", "input")
"""Members that contain calls of tools: in chats, responses and Anthropic's messages."""

Piece = tuple[int, int]
"""Digest, and approximate number of tokens."""


def _pieces(value: Any) -> Iterator[Piece]:
    """Yield pieces of a prompt or message: text is split, an image is one piece of no length."""
    if isinstance(value, str):
        for text in _cut(value, PIECE_CHARACTERS):
            yield piece_of(text, len(text))
    elif isinstance(value, list) and all(isinstance(item, int) for item in value):
        for ids in _cut(value, PIECE_CHARACTERS // CHARACTERS_PER_TOKEN):
            yield piece_of(ids, len(ids) * CHARACTERS_PER_TOKEN)
    elif isinstance(value, list):
        yield from chain.from_iterable(pieces_of_each(value))
    elif isinstance(value, dict):
        name = next((key for key in TEXTS if value.get(key)), TEXTS[0])
        frame = {key: each for key, each in value.items() if key != name}
        calls = [frame[key] for key in CALLS if frame.get(key)]
        yield piece_of(frame, characters_of(calls) if calls else 0)
        yield from _pieces(value.get(name))


def pieces_of_each(items: list[Any]) -> Iterator[list[Piece]]:
    """Yield the pieces of each item; items beyond PIECES_MAX form one piece."""
    for item in items[:PIECES_MAX]:
        yield list(_pieces(item))
    if rest := items[PIECES_MAX:]:
        yield [piece_of(rest, characters_of(rest))]


def _cut(value: Any, length: int) -> Iterator[Any]:
    """Split a text or list into pieces of `length`; the rest beyond PIECES_MAX is one more."""
    end = PIECES_MAX * length
    for begin in range(0, min(end, len(value)), length):
        yield value[begin : begin + length]
    if rest := value[end:]:
        yield rest


def piece_of(value: Any, characters: int) -> Piece:
    """Return a piece's digest and its approximate number of tokens, at least one."""
    digest = hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest()
    return int.from_bytes(digest, "big"), characters // CHARACTERS_PER_TOKEN + 1


def characters_of(value: Any) -> int:
    """Return the number of characters of tools or their calls as templates write them."""
    return len(msgspec.json.encode(value).decode())


def digest_of(parts: list[list[Piece]]) -> bytes:
    """Return the digest of messages given as pieces."""
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()
