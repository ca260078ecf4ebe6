"""Collects the metadata of an answer's events, to write further events and the whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from metropolis.llm.backends.http import NO_JSON

ERROR = 500


class ResponseBuilder:
    """The metadata of one answer, which may come in several parts and has one choice."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        """Fields of every event: `id`, `created`, `model`, …"""
        self._choice: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        """Fields of a chat's message except its content."""
        self._prompt_usage: dict[str, Any] | None = None
        """Usage of the first part."""
        self._usage: dict[str, Any] | None = None
        """Usage of the current part."""
        self._failure: tuple[int, bytes] | None = None
        """Status and body of the engine's error."""
        self._is_broken = False
        """Whether an event could not be parsed."""

    def take(self, event: dict[str, Any], *, is_first_part: bool) -> None:
        """Add an event."""
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
                before = self._message.get(name)
                if isinstance(value, str) and isinstance(before, str) and name != "role":
                    value = before + value
                if name != "content":
                    _set(self._message, name, value)

    def failed(self, data: bytes) -> None:
        """Record an invalid event, which may be the engine's error."""
        try:
            error = msgspec.json.decode(data)["error"]
        except (*NO_JSON, KeyError, TypeError):
            self._is_broken = True
            return
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else ERROR
        self._failure = status, data

    def begin_part(self) -> None:
        """Begin a part, from another engine or a second request to the same one."""
        self._usage = None

    def usage(self, kept_tokens: int) -> dict[str, Any] | None:
        """Return the usage of the whole, with `kept_tokens` of former parts; None if unknown."""
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
        """Yield the final events of an answer that broke off after all its tokens arrived."""
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
        """Return status and body of the non-streamed answer; None if it is incomplete.

        `is_full`: all requested tokens have arrived, though the engine did not end the answer.
        """
        if self._failure is not None:
            return self._failure
        finish_reason = self._choice.get("finish_reason") or ("length" if is_full else None)
        if self._is_broken or finish_reason is None:
            return None
        content: dict[str, Any] = {"text": text}
        if is_chat:
            content = {"message": {"role": "assistant", "content": text} | self._message}
        content |= {"logprobs": _concatenated(logprobs), **self._choice}
        choice = {"index": 0, **content, "finish_reason": finish_reason}
        answer = {
            **self.head,
            "object": "chat.completion" if is_chat else "text_completion",
            "choices": [choice],
            "usage": self.usage(kept_tokens),
        }
        return 200, msgspec.json.encode(answer)


def written(event: dict[str, Any]) -> bytes:
    """Encode `event` as a server-sent event."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def error_body(status: int, sentence: str, code: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format; `code` defaults to the status."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": sentence, "type": kind, "param": None, "code": code or status}
    return {"error": error}


def _tokens(usage: dict[str, Any], name: str) -> int:
    """Return a count from an engine's usage; 0 if it is invalid."""
    count = usage.get(name)
    return count if isinstance(count, int) else 0


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """Set a value; a null does not overwrite an earlier one."""
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
