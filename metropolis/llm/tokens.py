"""Counting tokens without a tokenizer: an estimate for limits, and a bound for budgets."""

from __future__ import annotations

import hashlib
import re
from itertools import islice

import metropolis._core as _core
from metropolis.llm.base import Request

CHARACTERS_PER_TOKEN = 4
PIECE_TOKENS = 16
"""Size of the blocks of simulated and of many real engines."""
TEMPLATE_TOKENS_PER_MESSAGE = 16
"""Upper bound: the chat templates of Llama 3, Qwen and Mistral add 4 to 8 to a message."""

_PIECE = re.compile(rf"\s*\S{{1,{CHARACTERS_PER_TOKEN}}}|\s+")


def approximate_tokens(text: str) -> int:
    """Estimated number of tokens of `text`: per word, one for every four characters begun."""
    return _core.approximate_tokens(text)


def truncated(text: str, tokens_max: int) -> tuple[str, int]:
    """The longest prefix of `text` with at most `tokens_max` approximate tokens; their number."""
    tokens = approximate_tokens(text)
    if tokens <= tokens_max:
        return text, tokens
    first_beyond = next(islice(_PIECE.finditer(text), tokens_max, None))
    return text[: first_beyond.start()], tokens_max


def prefix_pieces(text: str, tokens_max: int) -> tuple[tuple[int, int], ...]:
    """The beginning of a prompt as pieces (digest, tokens), of which equal prompts share the first.

    Pieces have PIECE_TOKENS approximate tokens, all together at most `tokens_max`.
    """
    tokens = _PIECE.findall(text)
    ends = range(PIECE_TOKENS, min(len(tokens), tokens_max) + 1, PIECE_TOKENS)
    pieces = ("".join(tokens[end - PIECE_TOKENS : end]).encode() for end in ends)
    digests = (hashlib.blake2b(piece, digest_size=7).digest() for piece in pieces)
    return tuple((int.from_bytes(digest, "big"), PIECE_TOKENS) for digest in digests)


def expected_tokens(request: Request) -> int:
    """A cheap estimate of the tokens of a request, with the longest possible answer."""
    return len(request.text) // CHARACTERS_PER_TOKEN + 1 + request.max_tokens


def prompt_tokens_max(request: Request) -> int:
    """An upper bound on the prompt's tokens: byte-level tokenizers make at most one per byte."""
    messages = 1 if request.messages is None else len(request.messages) + 1
    return len(request.text.encode()) + messages * TEMPLATE_TOKENS_PER_MESSAGE
