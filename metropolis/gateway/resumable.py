"""Which requests can be resumed in the middle of their answer, and how to request the rest.

Engines offer no preemption from outside, but prompt and partial answer form the next prompt, which
their prefix caches make cheap (Agentix §4.2.2). SGLang and vLLM continue the last message of a
chat. A body with a field that is not listed here is never resumed: the field's effect in the middle
of an answer is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from metropolis.gateway.payload import Payload, with_fields
from metropolis.gateway.routes import CHATS, COMPLETIONS

EVERY_USAGE = {"include_usage": True, "continuous_usage_stats": True}
"""Token counts in every event, which SGLang and vLLM support."""


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both; those of type `Any` have the same effect when an answer is resumed."""

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
    def is_unconstrained(self) -> bool:
        """One unconstrained text whose tokens depend on earlier ones only through the prompt."""
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
        """Whether a second answer can be appended to the first; in streams, logprobs rule it out,
        as their offsets are the engine's."""
        is_single = self.is_unconstrained and self.best_of in (None, 1) and not self.echo
        is_limited = self.max_tokens is not None
        has_offsets = self.logprobs is not None and self.stream
        return is_single and is_limited and not self.suffix and not has_offsets


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
        has_question = bool(self.messages) and self.messages[-1].role != "assistant"
        return self.is_unconstrained and has_question and not self.tools and not self.logprobs


@dataclass(frozen=True, slots=True)
class ResumableRequest:
    """A request whose answer may be assembled from parts."""

    body: Payload
    form: _Completion | _Chat
    messages: Sequence[dict[str, Any]]
    """The decoded messages of a chat."""
    counts: bool
    """Whether its engines count tokens in every event."""

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat rather than a completion."""
        return isinstance(self.form, _Chat)

    @property
    def is_joined(self) -> bool:
        """Whether the client gets one answer although engines stream."""
        return not self.form.stream

    @property
    def max_tokens(self) -> int | None:
        """The client's limit; None if only the engine's applies."""
        if isinstance(self.form, _Chat) and self.form.max_completion_tokens is not None:
            return self.form.max_completion_tokens
        return self.form.max_tokens

    @property
    def wants_usage(self) -> bool:
        """Whether the client wants usage at the end of its stream."""
        options = self.form.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def wants_every_usage(self) -> bool:
        """Whether the client wants usage in every event."""
        options = self.form.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def can_resume_after(self, piece: str) -> bool:
        """Whether an answer that ends with `piece` can be resumed there: chat templates strip white
        space, and a piece without text may be part of a character."""
        return bool(piece) and not (self.is_chat and piece[-1].isspace())

    def first(self) -> Payload:
        """Return the body that requests the answer from its beginning."""
        return with_fields(self.body, self._streamed())

    @property
    def wants_ids(self) -> bool:
        """Whether engines return token ids: a prompt of these cannot be tokenized differently.

        Chats accept no ids, and text buffered as a possible stop string would be lost.
        """
        return self.counts and not self.is_chat and not self.form.stop

    def rest(self, text: str, tokens: int, ids: list[int] | None) -> Payload:
        """Return the body that requests the continuation of `text`, which has `tokens` tokens.

        If given, the token `ids` of prompt and text form the new prompt.
        """
        fields = self._streamed()
        if isinstance(self.form, _Chat):
            fields["messages"] = [*self.messages, {"role": "assistant", "content": text}]
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        else:
            fields["prompt"] = ids or self.form.prompt + text
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
            limit = getattr(self.form, name, None)
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


def resumable_request(
    path: str, body: Payload, fields: dict[str, Any], *, preempts: bool, is_known: bool
) -> ResumableRequest | None:
    """Return how to resume the answer to `body`, decoded `fields`; None if it cannot be resumed.

    Answers are joined and tokens counted only for a policy that `preempts`; `is_known` means that
    all engines are SGLang or vLLM, which chats require.
    """
    if not preempts and not fields.get("stream"):
        return None
    route = path.partition("?")[0]
    try:
        if route == COMPLETIONS:
            form: _Completion | _Chat = msgspec.convert(fields, _Completion)
        elif route == CHATS and is_known:
            form = msgspec.convert(fields, _Chat)
        else:
            return None
    except (msgspec.ValidationError, RecursionError):
        return None  # not resumable, or an invalid body that the engine will report
    if not form.is_plain:
        return None
    messages = fields["messages"] if isinstance(form, _Chat) else []
    return ResumableRequest(body, form, messages, preempts and is_known)
