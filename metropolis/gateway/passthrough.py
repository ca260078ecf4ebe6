"""The state of an answer that is forwarded as it arrives and cannot be resumed."""

from __future__ import annotations

import re

from metropolis.llm.backends.sse import LAST

USAGE = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})(?=[\s,}])')
"""Responses and messages use the second name."""
LAST_EVENT = re.compile(rb"data: ?%b\s*\Z" % re.escape(LAST))
USAGE_BYTES = 2048
"""Size of an answer's end that contains its usage."""


class Passthrough:
    """An answer, in pieces or `whole`."""

    is_preemptible = can_resume = False
    """See `PartialAnswer`."""
    held_bytes = 0

    def __init__(self, whole: bytes = b"") -> None:
        self._end, self._events = whole[-USAGE_BYTES:], 0

    @property
    def output_tokens(self) -> int:
        """The engine's count, or the number of events before the last one."""
        count = output_tokens_in(self._end)
        return self._events - 1 if count is None else count

    @property
    def is_at_its_end(self) -> bool:
        """Whether the last event of the stream has arrived."""
        return LAST_EVENT.search(self._end) is not None

    def take(self, piece: bytes) -> bytes:
        """Return the bytes for the client."""
        self._events += piece.count(b"data:")
        self._end = (self._end + piece)[-USAGE_BYTES:]
        return piece

    def rest_of_event(self) -> bytes:
        """Return nothing: incomplete events have been forwarded."""
        return b""

    def ending(self) -> bytes:
        """Return nothing, as the end of the answer is unknown."""
        return b""


def output_tokens_in(end: bytes) -> int | None:
    """Return the number of output tokens given at the `end` of an answer, or None."""
    found = USAGE.findall(end[-USAGE_BYTES:])
    return int(found[-1]) if found else None
