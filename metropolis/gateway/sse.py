"""What is read in the events of a stream, of completions and of chats."""

from __future__ import annotations

from typing import Any

import msgspec

THOUGHT = "<think"
"""Templates of chats render thoughts anew, so that no answer that has some can be continued."""

TOKENS_MAX = 10**9
"""No answer has more."""


class Delta(msgspec.Struct, frozen=True):
    """What a chat's answer grows by."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None

    @property
    def is_plain(self) -> bool:
        """Nothing but text."""
        others = self.reasoning_content or self.reasoning or self.refusal or self.tool_calls
        return not others and THOUGHT not in (self.content or "")


class Choice(msgspec.Struct):
    """The answer's next piece."""

    text: str | None = None
    delta: Delta = Delta()
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Event(msgspec.Struct):
    """One of a stream, but the last."""

    choices: list[Choice]
    usage: Any = None
    error: Any = None

    @property
    def tokens(self) -> int | None:
        """Of the answer so far; None: the engine does not say, or says what cannot be."""
        told = self.usage.get("completion_tokens") if isinstance(self.usage, dict) else None
        return told if type(told) is int and 0 <= told <= TOKENS_MAX else None


def data_in(block: bytes) -> bytes:
    """Of an event's lines, which may also give it a name or a number."""
    lines = block.splitlines()
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
