"""Token counts of answers: the server's usage is checked against the text.

1. An answer of n characters, reasoning included, has at least n / 256 tokens, as no token of any
   vocabulary in use is longer. It has at most as many tokens as UTF-8 bytes, or as `max_tokens`
   if that is more, as tokens may be invisible. 16 more may be special tokens.
2. A prompt has at least n / 256 tokens. It has at most the sum of its bytes, 16 tokens per message,
   the bytes of a JSON schema, and 1,024 for a system prompt that the server adds.
3. A count that is missing, not an integer or out of bounds is replaced by an estimate from the
   text (`approximate_tokens`). This is reported on standard error once.
4. An answer with more than 64 KiB and 256 bytes for each of its `max_tokens` is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from metropolis.llm.base import MalformedError, Request
from metropolis.llm.tokens import approximate_tokens, prompt_tokens_max

TOKEN_CHARACTERS_MAX = 256
SPECIAL_TOKENS = 16
HIDDEN_PROMPT_TOKENS = 1024
TEXT_BYTES = 64 << 10
SHOWN_DIGITS = 20


class Meter:
    """Reads the usage that the server `called` reports."""

    def __init__(self, called: str) -> None:
        self.called = called
        self._is_reported = False

    def counts(self, usage: Any, text: str, hidden: int, request: Request) -> tuple[int, int]:
        """Tokens of the prompt and of the answer; `hidden` characters of it are not in `text`.

        `usage` is the decoded JSON object with `prompt_tokens` and `completion_tokens`, or anything
        received in its place.
        """
        usage = usage if isinstance(usage, dict) else {}
        schema = b"" if request.json_schema is None else msgspec.json.encode(request.json_schema)
        prompt_max = prompt_tokens_max(request) + len(schema) + HIDDEN_PROMPT_TOKENS
        shown_bytes = len(text.encode(errors="replace")) + hidden
        return (
            self._count(usage, "prompt_tokens", request.text, 0, prompt_max, request),
            self._count(
                usage,
                "completion_tokens",
                text,
                hidden,
                max(request.max_tokens, shown_bytes) + SPECIAL_TOKENS,
                request,
            ),
        )

    def check_length(self, text_bytes: int, request: Request) -> None:
        """Raise MalformedError if `text_bytes` is too long for any answer to `request`."""
        if text_bytes > TEXT_BYTES + TOKEN_CHARACTERS_MAX * request.max_tokens:
            raise MalformedError(
                f"{self.called} gave {request.where} an answer of {text_bytes:,} bytes or more; "
                f"{request.max_tokens:,} tokens have fewer"
            )

    def _count(
        self,
        usage: dict[str, Any],
        name: str,
        text: str,
        hidden: int,
        count_max: int,
        request: Request,
    ) -> int:
        reported = usage.get(name)
        if isinstance(reported, float) and reported.is_integer():
            reported = int(reported)
        count_min = (len(text) + hidden) / TOKEN_CHARACTERS_MAX
        if type(reported) is int and count_min <= reported <= count_max:
            return reported
        if not self._is_reported:
            self._is_reported = True
            shown = repr(reported)[:SHOWN_DIGITS]
            what = f"no {name}" if reported is None else f"{name} is {shown}"
            sys.stderr.write(
                f"metropolis: {self.called} gave an impossible usage for {request.where}: {what} "
                f"for {len(text):,} characters; tokens of such answers are estimated from the "
                "text\n"
            )
        return approximate_tokens(text) + -(-hidden // 4)
