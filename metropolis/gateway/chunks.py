"""The chunks in which completions and chats are streamed: the data of their events."""

from __future__ import annotations

from typing import Any

import msgspec

THOUGHT = "<think"
"""Chat templates rewrite reasoning, so an answer that contains some cannot be resumed."""

TOKENS_MAX = 10**9
"""Maximum plausible length of an answer."""


class Delta(msgspec.Struct, frozen=True):
    """An increment of a chat's answer."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether it contains only text."""
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


class Chunk(msgspec.Struct):
    """The data of one event other than the last, [DONE]."""

    choices: list[Choice]
    usage: Any = None
    error: Any = None

    @property
    def tokens(self) -> int | None:
        """Number of tokens of the answer so far; None if absent or implausible."""
        count = self.usage.get("completion_tokens") if isinstance(self.usage, dict) else None
        return count if type(count) is int and 0 <= count <= TOKENS_MAX else None
