"""A completion that is being streamed, and how to ask for the rest of it.

Engines know no preemption from outside, but prompt and answer so far make the next prompt, which
their prefix caches keep cheap (Agentix §4.2.2). Chats cannot be taken up in the middle of a turn.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from metropolis.gateway.asked import with_fields

PATH = "/v1/completions"
END = re.compile(rb"(\r?\n\r?\n)")
LAST = b"data: [DONE]\n\n"


class _Body(msgspec.Struct):
    prompt: str
    max_tokens: int
    stream: bool
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a second answer can be appended to the first."""
        alone = self.n in (None, 1) and self.best_of in (None, 1) and self.suffix is None
        return self.stream and alone and not self.echo and self.logprobs is None


class _Choice(msgspec.Struct):
    text: str
    finish_reason: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice]


class Partial:
    """What has come of the answer to `body`; tokens are taken to be as many as events with text."""

    def __init__(self, body: bytes, asked: _Body) -> None:
        self._body, self._asked = body, asked
        self._text, self._tokens, self._cut = "", 0, b""
        self.is_understood = True
        """False: some event was none of a completion's."""
        self.is_finished = False
        """All has come but the last event."""

    def take(self, piece: bytes) -> bytes:
        """The events that are whole with `piece`."""
        *whole, self._cut = END.split(self._cut + piece)
        for line in whole[::2]:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                self.is_finished = True
            elif line.startswith(b"data:"):
                self._read(data)
        return b"".join(whole)

    def cut(self) -> bytes:
        """What has come of an event that is not whole."""
        return self._cut

    def _read(self, data: bytes) -> None:
        try:
            choices = msgspec.json.decode(data, type=_Event).choices
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.is_understood = False
            return
        for choice in choices:
            self._text += choice.text
            self._tokens += bool(choice.text)
            self.is_finished |= choice.finish_reason is not None

    @property
    def is_at_its_end(self) -> bool:
        """Nothing is left to ask for."""
        return self.is_finished or self._tokens >= self._asked.max_tokens

    def rest(self) -> bytes:
        """The body that asks for the rest; an event that was cut is forgotten."""
        self._cut = b""
        if not self._tokens:
            return self._body
        prompt = self._asked.prompt + self._text
        left = self._asked.max_tokens - self._tokens
        return with_fields(self._body, {"prompt": prompt, "max_tokens": left})


def partial_of(path: str, body: bytes) -> Partial | None:
    """Nothing yet of the answer to `body`; None if it could not be taken up in the middle."""
    if path.partition("?")[0] != PATH:
        return None
    try:
        asked = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # no string for a prompt, no limit; or the engine will say what is wrong
    return Partial(body, asked) if asked.is_plain else None
