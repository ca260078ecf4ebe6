"""What an answer's events say beside the text: enough to write others like them, and the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from metropolis.llm.backends.http import NO_JSON

ERROR = 500


class Envelope:
    """Of one answer, in however many parts it comes; there is one choice."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        """Of every event: `id`, `created`, `model`, …"""
        self._choice: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        """Of a chat, beside its content."""
        self._prompt_usage: dict[str, Any] | None = None
        """As the first part has it."""
        self._usage: dict[str, Any] | None = None
        """As the part has it that comes."""
        self._failure: tuple[int, bytes] | None = None
        """Status and body of the engine's error."""
        self._is_broken = False
        """Some event could not be read."""

    def take(self, event: dict[str, Any], *, is_first_part: bool) -> None:
        """One more event."""
        if not self.head:
            self.head = {k: v for k, v in event.items() if k not in ("choices", "usage")}
        if isinstance(event.get("usage"), dict) and event["usage"]:
            self._usage = event["usage"]
            if is_first_part:
                self._prompt_usage = self._usage
        for choice in event["choices"]:
            for name, value in choice.items():
                if name not in ("text", "delta", "logprobs"):
                    _set(self._choice, name, value)
            for name, value in (choice.get("delta") or {}).items():
                if isinstance(value, str) and name not in ("role", "content"):
                    value = (self._message.get(name) or "") + value
                if name != "content":
                    _set(self._message, name, value)

    def failed(self, data: bytes) -> None:
        """An event was none: the engine's error, perhaps."""
        try:
            error = msgspec.json.decode(data)["error"]
        except (*NO_JSON, KeyError, TypeError):
            self._is_broken = True
            return
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else ERROR
        self._failure = status, data

    def begin_part(self) -> None:
        """What comes now is another engine's, or the same one's once more."""
        self._usage = None

    def usage(self, kept_tokens: int) -> dict[str, Any] | None:
        """Of the whole, when so many tokens of former parts have been kept; None: nobody knows."""
        last = self._usage or ({} if self._prompt_usage is None else self._prompt_usage)
        if not last:
            return None
        prompt = _tokens(last, "prompt_tokens") - kept_tokens
        details = last.get("prompt_tokens_details")
        if self._prompt_usage is not None:
            prompt = _tokens(self._prompt_usage, "prompt_tokens")
            details = self._prompt_usage.get("prompt_tokens_details")
        completion = kept_tokens + (_tokens(last, "completion_tokens") if self._usage else 0)
        counts: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if "prompt_tokens_details" in last:
            counts["prompt_tokens_details"] = details
        return {**last, **counts}

    def last_events(
        self, kept_tokens: int, *, is_chat: bool, is_finished: bool, wants_usage: bool
    ) -> Iterable[dict[str, Any]]:
        """Those that are missing of an answer that was left when all its tokens had come."""
        if not is_finished:
            text: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
            yield {**self.head, "choices": [{"index": 0, **text, "finish_reason": "length"}]}
        if wants_usage and (usage := self.usage(kept_tokens)) is not None:
            yield {**self.head, "choices": [], "usage": usage}

    def whole(
        self,
        text: str,
        logprobs: Iterable[dict[str, Any]],
        kept_tokens: int,
        *,
        is_chat: bool,
        is_full: bool,
    ) -> tuple[int, bytes] | None:
        """Status and body of the answer in one; None: it is not whole.

        When it `is_full`, all tokens asked for have come, though its engine did not say so.
        """
        if self._failure is not None:
            return self._failure
        finish_reason = self._choice.get("finish_reason") or ("length" if is_full else None)
        if self._is_broken or finish_reason is None:
            return None
        said: dict[str, Any] = {"text": text}
        if is_chat:
            said = {"message": {"role": "assistant", "content": text} | self._message}
        said |= {"logprobs": _concatenated(logprobs), **self._choice}
        choice = {"index": 0, **said, "finish_reason": finish_reason}
        answer = {
            **self.head,
            "object": "chat.completion" if is_chat else "text_completion",
            "choices": [choice],
            "usage": self.usage(kept_tokens),
        }
        return 200, msgspec.json.encode(answer)


def written(event: dict[str, Any]) -> bytes:
    """As a server sends it."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def error_body(status: int, sentence: str, code: str | None = None) -> dict[str, Any]:
    """An error of ours, as OpenAI writes them; its `code` is the status if none is given."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": sentence, "type": kind, "param": None, "code": code or status}
    return {"error": error}


def _tokens(usage: dict[str, Any], name: str) -> int:
    """A count that an engine tells; 0 for what is none."""
    told = usage.get(name)
    return told if isinstance(told, int) else 0


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """What has been said is not taken back by a null."""
    if value is not None or name not in values:
        values[name] = value


def _concatenated(parts: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    whole: dict[str, Any] = {}
    for part in parts:
        for name, values in part.items():
            if isinstance(values, list) and isinstance(whole.setdefault(name, []), list):
                whole[name] += values
            else:
                _set(whole, name, values)
    return whole or None
