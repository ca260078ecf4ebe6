"""Answers in OpenAI's format, whole and streamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from metropolis.gateway.cache_choice import CACHED, REUSED, REUSED_BYTES
from metropolis.torch_engine.cache_choice import Origin
from metropolis.torch_engine.generation_request import Output

DONE = b"data: [DONE]\n\n"


class AnswerFormat:
    """Writes one answer of `model` to a prompt of `prompt_tokens` tokens."""

    def __init__(self, model: str, prompt_tokens: int, *, is_chat: bool) -> None:
        self._is_chat, self._prompt_tokens = is_chat, prompt_tokens
        kind = "chatcmpl" if is_chat else "cmpl"
        self._head = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._is_first = True

    def whole(self, outputs: Sequence[Output]) -> bytes:
        """The answer that is not streamed."""
        text, last = "".join(output.text for output in outputs), outputs[-1]
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        name = "chat.completion" if self._is_chat else "text_completion"
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": last.finish}
        answer = {
            **self._head,
            "object": name,
            "choices": [choice],
            "usage": self._usage(last),
        }
        return msgspec.json.encode(answer)

    def event(self, output: Output) -> bytes:
        """The event of a stream for `output`."""
        content: dict[str, Any] = {"text": output.text}
        if self._is_chat:
            role = {"role": "assistant"} if self._is_first else {}
            content = {"delta": {**role, "content": output.text}}
        self._is_first = False
        return self._event([{"index": 0, **content, "finish_reason": output.finish}])

    def usage_event(self, last: Output) -> bytes:
        """The event that ends a stream whose client wants its usage."""
        return self._event([], usage=self._usage(last))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {**self._head, "object": name, "choices": choices, **more}
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _usage(self, last: Output) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": last.tokens,
            "total_tokens": self._prompt_tokens + last.tokens,
            "prompt_tokens_details": {"cached_tokens": last.origin.cached_tokens},
        }


def cache_headers(origin: Origin) -> dict[str, str]:
    """The headers that tell what the prefill started from."""
    return {
        CACHED: f"{origin.cached_tokens}",
        REUSED: f"{origin.reused_tokens}",
        REUSED_BYTES: f"{origin.reused_bytes}",
    }
