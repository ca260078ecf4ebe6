"""Counting tokens without a tokenizer: an estimate for limits, and a bound for budgets."""

from __future__ import annotations

import re
from itertools import islice

import metropolis._core as _core
from metropolis.llm.base import Request

CHARACTERS_PER_TOKEN = 4
PIECE_TOKENS = 16
"""Size of the blocks of simulated and of many real engines."""
TEMPLATE_TOKENS_PER_MESSAGE = 16
"""Upper bound: the chat templates of Llama 3, Qwen and Mistral add 4 to 8 to a message."""

_TOKEN = re.compile(rf"\s*\S{{1,{CHARACTERS_PER_TOKEN}}}|\s+")


def approximate_tokens(text: str) -> int:
    """Estimated number of tokens of `text`: per word, one for every four characters begun."""
    return _core.approximate_tokens(text)


def truncated(text: str, tokens_max: int) -> tuple[str, int]:
    """The longest prefix of `text` with at most `tokens_max` approximate tokens; their number."""
    tokens = approximate_tokens(text)
    if tokens <= tokens_max:
        return text, tokens
    first_beyond = next(islice(_TOKEN.finditer(text), tokens_max, None))
    return text[: first_beyond.start()], tokens_max


def prefix_pieces(text: str, tokens_max: int) -> tuple[tuple[int, int], ...]:
    """The beginning of a prompt as pieces (hash, tokens), of which equal prompts share the first.

    Pieces have PIECE_TOKENS approximate tokens, all together at most `tokens_max`. Hashes are those
    of this process.
    """
    hashes = _core.piece_hashes(text, PIECE_TOKENS, tokens_max // PIECE_TOKENS)
    return tuple((hash, PIECE_TOKENS) for hash in hashes)


def expected_tokens(request: Request) -> int:
    """A cheap estimate of the tokens of a request, with the longest possible answer."""
    return len(request.text) // CHARACTERS_PER_TOKEN + 1 + request.max_tokens


def prompt_tokens_max(request: Request) -> int:
    """An upper bound on the prompt's tokens: byte-level tokenizers make at most one per byte."""
    messages = 1 if request.messages is None else len(request.messages) + 1
    return len(request.text.encode()) + messages * TEMPLATE_TOKENS_PER_MESSAGE
