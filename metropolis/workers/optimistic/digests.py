"""What executions read and write, as speculation compares it: positions, and digests of the rest.

A digest is Python's 64-bit hash of the value's JSON: keyed by the process, so no input can be made
to collide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from metropolis.speculation.base import Answer, Emitted, Question, Value
from metropolis.types import Position, Step
from metropolis.world.encoding import plain
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Parts
from metropolis.world.view import View

CACHED_MAX = 100_000
"""Entities whose digests are kept."""


class Digests:
    """Digests of one run's values."""

    def __init__(self, first_step: Step) -> None:
        """`first_step` is step 0 of the speculation; what happened before it is no question."""
        self._first_step = first_step
        self._encode = msgspec.json.Encoder(enc_hook=plain).encode
        self._known: dict[int, tuple[Entity, Value]] = {}
        """By identity of the entity, which is kept, so that no other one gets its identity."""

    def value(self, entity: Entity) -> Value:
        """The value of an entity."""
        known = self._known.get(id(entity))
        if known is None:
            digest = hash(self._encode((entity.kind, entity.state)))
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            known = self._known[id(entity)] = entity, Value(entity.position, digest)
        return known[1]

    def path(self, body: Entity, positions: Iterable[Position]) -> list[Value]:
        """The values of `body` at each of `positions`."""
        digest = self.value(body).digest
        return [Value(position, digest) for position in positions]

    def emitted(self, event: Event) -> Emitted:
        """What is perceived of an event."""
        return Emitted(event.source, event.position, hash(self._encode((event.kind, event.data))))

    def writes(self, writes: Mapping[str, Entity | None]) -> dict[str, Value | None]:
        """Name -> the new value."""
        return {
            name: None if entity is None else self.value(entity) for name, entity in writes.items()
        }

    def events(self, events: Iterable[Event]) -> tuple[Emitted, ...]:
        """The events, in order, without those from before the run."""
        return tuple(self.emitted(event) for event in events if event.step >= self._first_step)

    def reads(self, view: View, *, sure: bool) -> list[tuple[Question, Answer]]:
        """The questions that were asked through `view`, with their answers.

        An execution that is refused an entity may go on. If it is `sure`, it is right that the
        entity is out of reach; where exactly may change until the execution ends, and is no answer.
        """
        value, reads = self.value, view.reads
        asked: list[tuple[Question, Answer]] = []
        for name, version in reads.entities.items():
            if sure and name in view.refused:
                continue
            entity = version and version[1]
            asked.append((Question("entity", name), None if entity is None else value(entity)))
        for (centre, radius), versions in reads.areas.items():
            seen = [one for _, one in versions if one is not None]
            answer = tuple((one.name, value(one)) for one in seen)
            asked.append((Question("entities", "", centre, radius), answer))
        for (centre, radius), events in reads.events.items():
            asked.append((Question("events", "", centre, radius), self.events(events)))
        return asked


def mind_digest(parts: Parts) -> Any:
    """The digest of a mind; texts and bytes keep their hashes, so unchanged parts cost little."""
    return hash(frozenset(parts.items()))
