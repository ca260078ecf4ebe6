"""The parser of server-sent events, for clients of model servers and for the gateway.

An event ends with an empty line. Lines end with LF or CRLF; no model server uses a bare CR.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EMPTY_LINE = re.compile(rb"\n\r?\n")
EMPTY_LINE_BYTES = 3
BOM = "\ufeff".encode()
"""The byte order mark, which may begin a stream."""
LAST = b"[DONE]"
"""The data of the event that ends a stream of completions."""


class ServerSentEvent(NamedTuple):
    """One event."""

    raw: bytes
    """The bytes as received, including the empty line."""
    data: bytes
    """The values of its `data` lines, joined by newlines; empty for a comment."""


class EventParser:
    """Splits a stream, which arrives in pieces of any size, into events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        """Number of bytes of the rest in which no empty line begins."""

    @property
    def rest(self) -> bytes:
        """The bytes of the incomplete event."""
        return bytes(self._rest)

    @property
    def held_bytes(self) -> int:
        """Size of the incomplete event."""
        return len(self._rest)

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that `piece` completes."""
        self._rest += piece
        events, begin = [], 0
        while end := EMPTY_LINE.search(self._rest, max(begin, self._searched)):
            raw = bytes(self._rest[begin : end.end()])
            events.append(ServerSentEvent(raw, data_in(raw)))
            begin = end.end()
        del self._rest[:begin]
        self._searched = max(0, len(self._rest) - EMPTY_LINE_BYTES + 1)
        return events


def data_in(event: bytes) -> bytes:
    """Return the data of an event, whose lines may also give a name or a number."""
    event = event.removeprefix(BOM)
    if event.startswith(b"data:") and event.find(b"\n") >= len(event) - EMPTY_LINE_BYTES:
        return event[5:].strip()  # the usual event: one line
    lines = event.splitlines()
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
