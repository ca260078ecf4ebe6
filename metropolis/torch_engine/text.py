"""The text of an answer as its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INCOMPLETE = "�"
"""Stands for the bytes of a character whose other bytes have not arrived."""
CHARACTER_TOKENS = 4
"""Maximum number of tokens of one character."""
WINDOW_TOKENS = 32
"""Maximum number of tokens that are decoded together while they form no whole character."""


class AnswerText:
    """Decodes an answer's tokens, up to the first of the `stops`, which it does not contain."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._tokens: list[int] = []
        self._begin = self._end = 0
        """The tokens in [begin, end) are decoded together with later ones, whose text may depend
        on them. The text of all tokens before `end` has been returned or is in `_held`."""
        self._decoded_characters = 0
        """Characters of the tokens from `end` on that have been returned or are in `_held`."""
        self._held = ""
        """Text that may be the beginning of a stop."""
        self.is_stopped = False
        """Whether a stop was found."""

    def add(self, token: int) -> str:
        """Add a token; return the new text that later tokens cannot change."""
        self._tokens.append(token)
        return self._certain(self._decoded())

    def finish(self) -> str:
        """Return the rest of the text: there are no more tokens."""
        text = self._certain(self._decoded(is_last=True))
        if self.is_stopped:
            return text
        rest, self._held = self._held, ""
        return text + rest

    def _decoded(self, *, is_last: bool = False) -> str:
        former = self._text(self._begin, self._end)
        text = self._text(self._begin, len(self._tokens))[len(former) :]
        certain = text if is_last or not text.endswith(INCOMPLETE) else text[:-1]
        new = certain[self._decoded_characters :]
        if certain == text:
            self._begin, self._end, self._decoded_characters = self._end, len(self._tokens), 0
        else:
            self._decoded_characters = len(certain)
            if len(self._tokens) - self._end > WINDOW_TOKENS:
                self._cut_window(former + text)
        return new

    def _cut_window(self, text: str) -> None:
        """Begin the window, whose text is `text`, at one of the last characters."""
        last = len(self._tokens)
        for begin in range(last - 1, last - CHARACTER_TOKENS - 1, -1):
            rest = self._text(begin, last)
            if self._text(self._begin, begin) + rest == text:
                self._begin = self._end = begin
                self._decoded_characters = len(rest) - 1
                return

    def _certain(self, text: str) -> str:
        if self.is_stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            return self._held[: min(found)]
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        certain = len(self._held) - kept
        text, self._held = self._held[:certain], self._held[certain:]
        return text

    def _text(self, begin: int, end: int) -> str:
        tokens = self._tokens[begin:end]
        return str(
            self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` with which `stop` begins, shorter than `stop`."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
