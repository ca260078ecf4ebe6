"""Counting tokens without a tokenizer: an estimate for limits, and a bound for budgets."""

from __future__ import annotations

import re

from metropolis.llm.base import Request

CHARACTERS_PER_TOKEN = 4
TEMPLATE_TOKENS_PER_MESSAGE = 16
"""More than the chat templates of Llama 3, Qwen and Mistral put around a message (4 to 8)."""

_PIECE = re.compile(rf"\s*\S{{1,{CHARACTERS_PER_TOKEN}}}|\s+")


def approximate_tokens(text: str) -> int:
    """About how many tokens `text` has: each word counts one for every four characters begun."""
    return len(_PIECE.findall(text))


def first_tokens(text: str, count: int) -> str:
    """The longest beginning of `text` with at most `count` approximate tokens."""
    for number, piece in enumerate(_PIECE.finditer(text)):
        if number == count:
            return text[: piece.start()]
    return text


def expected_tokens(request: Request) -> int:
    """About how many tokens a request takes, with all the answer it may get; cheap to say."""
    return len(request.text) // CHARACTERS_PER_TOKEN + 1 + request.max_tokens


def prompt_tokens_at_most(request: Request) -> int:
    """A bound on the prompt's tokens: no byte-level tokenizer makes more tokens than bytes."""
    messages = 1 if request.messages is None else len(request.messages) + 1
    return len(request.text.encode()) + messages * TEMPLATE_TOKENS_PER_MESSAGE
