"""The state of an answer that arrives in parts, and its conversion to one stream for the client.

1. A part begins where the text so far ends, or slightly before it
   (`ResumableRequest.can_resume_after`); text that the client already has is not sent again.
2. A token counts when its text is kept: usage covers the kept parts and the last one.
3. The client's stream has one id, one role, one end. With a single part, and no fields requested
   beyond the client's own, its bytes are the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from metropolis.gateway.chunks import Choice, Chunk
from metropolis.gateway.payload import Payload
from metropolis.gateway.response_builder import ResponseBuilder, error_body, written
from metropolis.gateway.resumable import ResumableRequest
from metropolis.llm.backends.http import NO_JSON
from metropolis.llm.backends.sse import LAST, EventParser, ServerSentEvent

LAST_EVENT = b"data: %b\n\n" % LAST
IDS = {"token_ids", "prompt_token_ids"}
NO_ANSWER = 502
TAIL_BYTES = 1000
"""How much of an incomplete answer's end is shown to its client."""
EXACT_TOKENS = 16
"""Maximum number of tokens to await, or to regenerate, in order to resume at a single token."""


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    tokens: int
    """Number of tokens so far, including this piece."""
    logprobs: dict[str, Any] | None
    ids: list[int] | None


class PartialAnswer:
    """The received parts of the answer to `request`.

    If engines do not count tokens, each event with text counts as one.
    """

    def __init__(self, request: ResumableRequest) -> None:
        self._request = request
        self._pieces: list[_Piece] = []
        self._prompt_ids: list[int] | None = None
        """The token ids of this part's prompt, if known."""
        self._kept = self._kept_tokens = 0
        """Number of pieces and tokens of former parts."""
        self._begin = self._length = self._sent = 0
        """Characters before this part, received, and sent to the client."""
        self._parser, self._builder, self._tail = EventParser(), ResponseBuilder(), b""
        self._is_first_part = True
        self._is_begun = self._is_finished = self._is_ended = self._has_usage = False
        """Whether the client has an event; whether the last piece, all events, usage arrived."""
        self.output_tokens = 0
        self.is_understood = True
        """Whether all events so far permit resuming the answer."""

    @property
    def is_joined(self) -> bool:
        """Whether the client gets one answer instead of a stream."""
        return self._request.is_joined

    @property
    def is_preemptible(self) -> bool:
        """Whether the answer may be interrupted now and resumed.

        With token ids, a part waits for a piece of a single token (see `_resume_point`).
        """
        if not self.is_understood or self._length <= self._begin:
            return False
        first = self._pieces[self._kept : self._kept + EXACT_TOKENS]
        return self._tokens - self._kept_tokens >= EXACT_TOKENS or any(map(self._is_exact, first))

    @property
    def can_resume(self) -> bool:
        """Whether the rest can be requested, or the whole if the client has nothing yet."""
        return self.is_understood or self.is_joined

    @property
    def held_bytes(self) -> int:
        """Approximate memory: the text so far and the incomplete event."""
        return self._length + self._parser.held_bytes

    @property
    def is_at_its_end(self) -> bool:
        """Whether nothing remains to be requested."""
        return self._is_finished or self._is_full

    def take(self, piece: bytes) -> bytes:
        """Return the events that `piece` completes, in the client's form."""
        self._tail = (self._tail + piece)[-TAIL_BYTES:]
        return b"".join(map(self._take_event, self._parser.feed(piece)))

    def rest_of_event(self) -> bytes:
        """Return the received bytes of an incomplete event."""
        return self._parser.rest

    def ending(self) -> bytes:
        """Return the missing end of a complete stream whose engine was left before its end."""
        if self._is_ended:
            return b""
        events = self._builder.last_events(
            self._kept_tokens,
            is_chat=self._request.is_chat,
            is_finished=self._is_finished,
            wants_usage=self._request.wants_usage and not self._has_usage,
        )
        return b"".join(map(written, events)) + LAST_EVENT

    def rest(self) -> Payload:
        """Begin a new part: return the body that requests the rest; drop an incomplete event."""
        if not self.is_understood:
            self._pieces, self._builder, self.is_understood = [], ResponseBuilder(), True
            self._kept, self._kept_tokens, self._prompt_ids = 0, 0, None
        del self._pieces[self._resume_point() :]
        self._prompt_ids = self._ids()
        text = "".join(piece.text for piece in self._pieces)
        self._kept, self._kept_tokens = len(self._pieces), self._tokens
        self._begin = self._length = len(text)
        self.output_tokens, self._parser = self._kept_tokens, EventParser()
        self._is_first_part = False
        self._builder.begin_part()
        if not text:
            return self._request.first()
        return self._request.rest(text, self._kept_tokens, self._prompt_ids)

    def whole(self) -> tuple[int, bytes]:
        """Return status and body of the non-streamed answer; an error if it is incomplete."""
        text = "".join(piece.text for piece in self._pieces)
        logprobs = [piece.logprobs for piece in self._pieces if piece.logprobs]
        is_chat, is_full = self._request.is_chat, self._is_full
        whole = self._builder.whole(
            text, logprobs, self._kept_tokens, is_chat=is_chat, is_full=is_full
        )
        if whole is not None:
            return whole
        tail = self._tail.decode(errors="replace")
        sentence = f"the engine's answer is incomplete; it ends with {tail!r}"
        return NO_ANSWER, msgspec.json.encode(error_body(NO_ANSWER, sentence))

    def _resume_point(self) -> int:
        """Return how many pieces to keep: up to the last one after which an answer can resume.

        With token ids, prefer a nearby piece of a single token, as the last of several may be
        part of a character; but keep something of every part.
        """
        can_resume_after = [self._request.can_resume_after(piece.text) for piece in self._pieces]
        edges = [n for n in range(len(can_resume_after), 0, -1) if can_resume_after[n - 1]]
        near = (n for n in edges if self._tokens - self._pieces[n - 1].tokens <= EXACT_TOKENS)
        exact = (n for n in near if n > self._kept and self._is_exact(self._pieces[n - 1]))
        return next(exact, (edges or [0])[0])

    def _is_exact(self, piece: _Piece) -> bool:
        """Whether an answer can resume after `piece` and, with token ids, they have its text only.

        After a space, SGLang may hold back the beginning of a character of the same token.
        """
        is_single = len(piece.ids or ()) == 1 and not piece.text.endswith(" ")
        can_resume = self._request.can_resume_after(piece.text)
        return can_resume and (is_single or self._prompt_ids is None)

    def _ids(self) -> list[int] | None:
        """Return the token ids of prompt and text, or None if unknown."""
        new = self._pieces[self._kept :]
        ids = [*chain.from_iterable(piece.ids or () for piece in new)]
        if self._prompt_ids is None or len(ids) != self._tokens - self._kept_tokens:
            return None
        return None if new and not self._is_exact(new[-1]) else self._prompt_ids + ids

    @property
    def _tokens(self) -> int:
        return self._pieces[-1].tokens if self._pieces else 0

    @property
    def _is_full(self) -> bool:
        """Whether the token limit is reached."""
        limit = self._request.max_tokens
        return bool(self._pieces) and limit is not None and self._tokens >= limit

    def _take_event(self, event: ServerSentEvent) -> bytes:
        """Process an event; return what the client gets."""
        if event.data == LAST:
            self._is_ended = self._is_finished = True
        elif event.data:
            return self._take_chunk(event)
        elif not event.raw.startswith(b":"):
            self.is_understood = False
        return event.raw

    def _take_chunk(self, event: ServerSentEvent) -> bytes:
        is_verbatim = self._is_first_part and not self.is_joined and not self._request.counts
        is_undecoded = is_verbatim and bool(self._builder.head)
        fields: dict[str, Any] = {}
        try:
            if not is_undecoded:
                fields = msgspec.json.decode(event.data)
            chunk = msgspec.json.decode(event.data, type=Chunk)
        except NO_JSON:
            chunk = None
        if chunk is None or chunk.error is not None:
            self.is_understood = False
            self._builder.failed(event.data)
            return event.raw
        unseen = "".join(self._take_choice(choice, chunk.tokens) for choice in chunk.choices)
        if chunk.tokens is not None:
            self.output_tokens = self._kept_tokens + chunk.tokens
        if is_undecoded:
            return event.raw
        if self._request.wants_ids:
            for choice in fields["choices"]:
                for name in IDS & choice.keys():
                    del choice[name]  # not requested by the client
        self._builder.take(fields, is_first_part=self._is_first_part)
        self._is_begun |= is_verbatim
        if is_verbatim or self.is_joined:
            return event.raw
        return self._rewritten(fields, unseen)

    def _take_choice(self, choice: Choice, part_tokens: int | None) -> str:
        """Add a choice; return the part of its text that the client does not have."""
        text = choice.text or choice.delta.content or ""
        self.is_understood &= choice.delta.is_plain
        if text:
            self.output_tokens += 1
        tokens = self.output_tokens
        if part_tokens is not None:
            tokens = self._kept_tokens + part_tokens
        if text or choice.logprobs or choice.token_ids:
            logprobs = _shifted(choice.logprobs, self._begin)
            self._pieces.append(_Piece(text, tokens, logprobs, choice.token_ids))
        if self._request.wants_ids and choice.prompt_token_ids:
            self._prompt_ids = choice.prompt_token_ids
        unseen = text[max(0, self._sent - self._length) :]
        self._length += len(text)
        self._sent = max(self._sent, self._length)
        self._is_finished |= choice.finish_reason is not None
        return unseen

    def _rewritten(self, event: dict[str, Any], unseen: str) -> bytes:
        """Rewrite `event` like those of the first part, with the fields the client requested."""
        event |= self._builder.head
        if event.get("usage") and not self._show_usage(event):
            return b""
        for choice in event["choices"]:
            delta = choice.get("delta", {})
            if self._is_begun and not self._is_first_part:
                if not unseen and choice.get("finish_reason") is None:
                    return b""
                delta.pop("role", None)
            if choice.get("text"):
                choice["text"] = unseen
            elif delta.get("content"):
                delta["content"] = unseen
            self._is_begun = True
        return written(event)

    def _show_usage(self, event: dict[str, Any]) -> bool:
        """Set the whole answer's usage if the client wants it; return False to drop the event."""
        is_last = not event["choices"]
        if (is_last and self._request.wants_usage) or self._request.wants_every_usage:
            self._has_usage |= is_last
            event["usage"] = self._builder.usage(self._kept_tokens)
        else:
            event["usage"] = None
            if not self._request.wants_usage:
                del event["usage"]
        return "usage" in event or not is_last


def _shifted(logprobs: dict[str, Any] | None, begin: int) -> dict[str, Any] | None:
    """Shift text offsets from the part's beginning to the answer's; invalid ones remain."""
    offsets = (logprobs or {}).get("text_offset")
    if logprobs is None or not isinstance(offsets, list):
        return logprobs
    shifted = [at + begin if isinstance(at, int) and at >= 0 else at for at in offsets]
    return logprobs | {"text_offset": shifted}
