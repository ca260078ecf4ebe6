"""The history of a run: a line of JSON per step, the same in every mode, and its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from metropolis.types import MetropolisError
from metropolis.world.entities import Entity, Event, thaw
from metropolis.world.record import StepRecord

_encoder = msgspec.json.Encoder(enc_hook=lambda value: _plain(value), order="sorted")


def line_of(record: StepRecord) -> bytes:
    """The canonical line of a step, without its end; actions that are nothing are left out."""
    content: dict[str, Any] = {
        "step": record.step,
        "actions": {name: act for name, act in record.actions.items() if act is not None},
        "writes": {
            name: entity and entity_to_json(entity) for name, entity in record.writes.items()
        },
        "events": [event_to_json(event) for event in record.events],
    }
    return _encoder.encode({key: value for key, value in content.items() if value not in ({}, [])})


def record_of(line: bytes) -> StepRecord:
    """The reverse of `line_of`; actions come back as JSON has them."""
    content = msgspec.json.decode(line)
    writes = {
        name: entity and entity_from_json(name, entity)
        for name, entity in content.get("writes", {}).items()
    }
    events = [event_from_json(event) for event in content.get("events", [])]
    return StepRecord(content["step"], content.get("actions", {}), writes, events)


def entity_to_json(entity: Entity) -> dict[str, Any]:
    """All but the name."""
    return {"kind": entity.kind, "at": entity.position, "state": thaw(entity.state)}


def entity_from_json(name: str, content: Mapping[str, Any]) -> Entity:
    """The reverse of `entity_to_json`."""
    return Entity(name, tuple(content["at"]), content["kind"], content["state"])


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as JSON."""
    return {
        "step": event.step,
        "source": event.source,
        "kind": event.kind,
        "at": event.position,
        "data": thaw(event.data),
    }


def event_from_json(content: Mapping[str, Any]) -> Event:
    """The reverse of `event_to_json`."""
    return Event(
        content["step"], content["source"], tuple(content["at"]), content["kind"], content["data"]
    )


class HistoryWriter:
    """Takes the steps in order; keeps the digest, and the lines in a file if there is one.

    A file that exists is taken up after its first `keep_bytes`, the rest is cut off.
    """

    def __init__(self, path: Path | None = None, keep_bytes: int = 0) -> None:
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None
        self.size_bytes = keep_bytes
        if path is not None:
            self._file = path.open("r+b" if keep_bytes else "w+b")
            kept = self._file.read(keep_bytes)
            if len(kept) != keep_bytes:
                raise MetropolisError(
                    f"{path}: is {len(kept)} bytes long; its checkpoint needs {keep_bytes}"
                )
            self._digest.update(kept)
            self._file.truncate()

    def append(self, record: StepRecord) -> None:
        """The next step."""
        line = line_of(record) + b"\n"
        self._digest.update(line)
        self.size_bytes += len(line)
        if self._file is not None:
            self._file.write(line)

    @property
    def sha256(self) -> str:
        """The digest of the steps so far."""
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Hand the lines to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"{type(value).__name__} is not plain data; actions are numbers, texts, arrays, and "
        "mappings and lists of these"
    )
