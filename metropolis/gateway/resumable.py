"""Which requests can be gone on with in the middle of their answer, and how the rest is asked for.

Engines know no preemption from outside, but prompt and answer so far make the next prompt, which
their prefix caches keep cheap (Agentix §4.2.2). Of a chat, SGLang and vLLM continue the last
message. A body with a field that is not named here is let alone: nobody knows what it means in the
middle of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from metropolis.gateway.request_parsing import with_fields
from metropolis.gateway.routes import CHATS, COMPLETIONS

EVERY_USAGE = {"include_usage": True, "continuous_usage_stats": True}
"""Tokens so far in every event; SGLang and vLLM know it."""


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both have; `Any` means the same at the beginning of an answer and in its middle."""

    stream: bool | None = None
    stream_options: _Options | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    response_format: Any = None
    model: Any = None
    user: Any = None
    seed: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    logit_bias: Any = None
    stop_token_ids: Any = None
    ignore_eos: Any = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    no_stop_trim: Any = None
    lora_path: Any = None
    cache_salt: Any = None
    priority: Any = None
    metadata: Any = None
    service_tier: Any = None

    @property
    def is_alone(self) -> bool:
        """One free text, of which no token depends on those before but by the prompt."""
        penalties = self.frequency_penalty or self.presence_penalty
        is_free = self.response_format is None and self.repetition_penalty in (None, 1)
        return self.n in (None, 1) and not penalties and is_free


class _Completion(_Body, kw_only=True):
    prompt: str
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a second answer can be appended to the first; offsets only where they are ours
        to count."""
        is_alone = self.is_alone and self.best_of in (None, 1) and not self.echo
        is_limited = self.max_tokens is not None
        return is_alone and is_limited and not self.suffix and not (self.logprobs and self.stream)


class _Message(msgspec.Struct):
    role: str
    content: str


class _Chat(_Body, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether its answer can be continued as its last message."""
        is_asked = bool(self.messages) and self.messages[-1].role != "assistant"
        return self.is_alone and is_asked and not self.tools and not self.logprobs


@dataclass(frozen=True, slots=True)
class Continuable:
    """A request whose answer may come in parts."""

    body: bytes
    asked: _Completion | _Chat
    counts: bool
    """Whether its engines say in every event how many tokens there are."""

    @property
    def is_chat(self) -> bool:
        """A chat, and no completion."""
        return isinstance(self.asked, _Chat)

    @property
    def is_joined(self) -> bool:
        """The client gets one answer, though engines are asked for streams."""
        return not self.asked.stream

    @property
    def max_tokens(self) -> int | None:
        """None: no limit but the engine's."""
        if isinstance(self.asked, _Chat) and self.asked.max_completion_tokens is not None:
            return self.asked.max_completion_tokens
        return self.asked.max_tokens

    @property
    def wants_usage(self) -> bool:
        """At the end of its stream."""
        options = self.asked.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def wants_every_usage(self) -> bool:
        """In every event."""
        options = self.asked.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def is_edge(self, piece: str) -> bool:
        """Whether an answer whose last piece has this text is taken up as it stands: templates of
        chats cut white space off, and what has no text may be a part of a character."""
        return bool(piece) and not (self.is_chat and piece[-1].isspace())

    def first(self) -> bytes:
        """The body that asks for the answer from its beginning."""
        return with_fields(self.body, self._streamed())

    @property
    def wants_ids(self) -> bool:
        """Engines are asked which tokens there are: a prompt of these is not tokenized otherwise.

        Chats take none, and text that is held back, as it may be a stop string, would be lost.
        """
        return self.counts and not self.is_chat and not self.asked.stop

    def rest(self, text: str, tokens: int, ids: list[int] | None) -> bytes:
        """The body that asks for what comes after `text`, of so many `tokens`.

        With `ids`, of the prompt and of the text, these are the prompt.
        """
        fields = self._streamed()
        if isinstance(self.asked, _Chat):
            messages = msgspec.json.decode(self.body)["messages"]
            fields["messages"] = [*messages, {"role": "assistant", "content": text}]
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        else:
            fields["prompt"] = ids or self.asked.prompt + text
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
            limit = getattr(self.asked, name, None)
            if limit is not None:
                fields[name] = max(0, limit - tokens)
        return with_fields(self.body, fields)

    def _streamed(self) -> dict[str, Any]:
        if self.counts:
            ids = {"return_token_ids": True} if self.wants_ids else {}
            return {"stream": True, "stream_options": EVERY_USAGE, **ids}
        if self.is_joined:
            return {"stream": True, "stream_options": {"include_usage": True}}
        return {}


def continuable(path: str, body: bytes, *, preempts: bool, is_known: bool) -> Continuable | None:
    """What there is to `body`; None if its answer cannot be taken up in the middle.

    Only for a policy that `preempts` are answers joined, or tokens counted; `is_known` says that
    the engines are SGLang's or vLLM's, which chats need.
    """
    if not preempts and b'"stream"' not in body:
        return None
    route = path.partition("?")[0]
    try:
        if route == COMPLETIONS:
            asked: _Completion | _Chat = msgspec.json.decode(body, type=_Completion)
        elif route == CHATS and is_known:
            asked = msgspec.json.decode(body, type=_Chat)
        else:
            return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # something else is asked for; or the engine will say what is wrong
    if not asked.is_plain or not (asked.stream or preempts):
        return None
    return Continuable(body, asked, preempts and is_known)
