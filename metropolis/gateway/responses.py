"""Maps stored responses to their engines, so that requests that refer to one go to its engine."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from metropolis.llm.backends.http import NO_JSON
from metropolis.llm.backends.sse import EventParser
from metropolis.types import MetropolisError

RESPONSES_MAX = 10_000
"""Maximum number of entries; the least recently used one is dropped."""
AGE_S = 24 * 3600.0
"""Maximum time since the last request that referred to the response."""
ID_CHARACTERS_MAX = 200
FIRST_EVENT_BYTES = 1 << 20


class UnknownResponseError(MetropolisError):
    """The tenant has no response with the given id."""


class StoredResponse(NamedTuple):
    """A response's engine, program and owner."""

    instance: int
    program: str
    tenant: str
    used_s: float


class Responses:
    """Stored responses by id."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredResponse] = {}
        """Least recently used first."""

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, id_: str, instance: int, program: str, tenant: str, now_s: float) -> None:
        """Record that `instance` made a response for `tenant`, which is empty without keys."""
        self._stored.pop(id_, None)
        self._stored[id_] = StoredResponse(instance, program, tenant, now_s)
        if len(self._stored) > RESPONSES_MAX:
            del self._stored[next(iter(self._stored))]

    def find(self, id_: str | None, tenant: str, now_s: float) -> StoredResponse | None:
        """Return the entry of a response; None if it is unknown.

        Raises UnknownResponseError if there are keys and it is not known to be the tenant's.
        """
        if id_ is None:
            return None
        stored = self._stored.get(id_)
        if tenant and (stored is None or stored.tenant != tenant):
            raise UnknownResponseError(
                "the tenant of this key has no such response; send the whole conversation instead"
            )
        if stored is not None:
            self.add(id_, stored.instance, stored.program, stored.tenant, now_s)
        return stored

    def sweep(self, now_s: float) -> None:
        """Drop responses that have not been used for AGE_S."""
        while self._stored:
            id_, stored = next(iter(self._stored.items()))
            if now_s - stored.used_s < AGE_S:
                return
            del self._stored[id_]


class _Response(msgspec.Struct):
    id: str | None = None


class _Event(msgspec.Struct):
    response: _Response | None = None


class FirstEvent:
    """Finds a response's id in the first event of its stream."""

    def __init__(self) -> None:
        self._parser: EventParser | None = EventParser()
        """None after the first event."""

    def id_in(self, piece: bytes) -> str | None:
        """Return the id once `piece` completes the event that contains it."""
        if self._parser is None:
            return None
        events = [event for event in self._parser.feed(piece) if event.data]  # no comments
        if events or self._parser.held_bytes > FIRST_EVENT_BYTES:
            self._parser = None
        if not events:
            return None
        try:
            response = msgspec.json.decode(events[0].data, type=_Event).response
        except NO_JSON:
            return None
        return None if response is None else _checked(response.id)


def id_of(whole: bytes) -> str | None:
    """Return the id of a response that is not streamed."""
    try:
        return _checked(msgspec.json.decode(whole, type=_Response).id)
    except NO_JSON:
        return None


def _checked(id_: str | None) -> str | None:
    return id_ if id_ and len(id_) <= ID_CHARACTERS_MAX else None
