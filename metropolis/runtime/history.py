"""The history of a run: a line of JSON per step, the same in every mode, and its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from metropolis.types import MetropolisError, Step
from metropolis.world.encoding import (
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
    plain,
)
from metropolis.world.record import StepRecord

_encoder = msgspec.json.Encoder(enc_hook=plain, order="sorted")


def line_of(record: StepRecord) -> bytes:
    """The canonical line of a step, without its end; actions that are nothing are left out.

    Raises MetropolisError when something in it cannot be written as JSON.
    """
    content: dict[str, Any] = {
        "step": record.step,
        "actions": {name: act for name, act in record.actions.items() if act is not None},
        "writes": {
            name: entity and entity_to_json(entity) for name, entity in record.writes.items()
        },
        "events": [event_to_json(event) for event in record.events],
    }
    try:
        return _encoder.encode({key: part for key, part in content.items() if part not in ({}, [])})
    except (TypeError, ValueError, OverflowError) as error:
        raise MetropolisError(
            f"step {record.step}: what was done or written is not plain data: {error}"
        ) from error


def record_of(line: bytes) -> StepRecord:
    """The reverse of `line_of`; actions come back as JSON has them."""
    content = msgspec.json.decode(line)
    writes = {
        name: entity and entity_from_json(name, entity)
        for name, entity in content.get("writes", {}).items()
    }
    events = [event_from_json(event) for event in content.get("events", [])]
    return StepRecord(content["step"], content.get("actions", {}), writes, events)


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Those that were written to their ends."""
    return (line for line in file if line.endswith(b"\n"))


class StepsFile:
    """A file to which the steps of a run are added in order; None keeps nothing.

    What exists is taken up after its first `keep` steps.
    """

    def __init__(self, path: Path | None, keep: Step) -> None:
        self._file: BinaryIO | None = path.open("r+b" if keep else "w+b") if path else None

    def flush(self, *, durably: bool = False) -> None:
        """Hand the lines to the operating system; `durably`: let them survive a power cut."""
        if self._file is not None:
            self._file.flush()
            if durably:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class HistoryWriter(StepsFile):
    """Takes the steps in order; keeps the digest, and the lines in a file if there is one.

    A file that exists is taken up after its first `keep` steps, the rest is cut off.
    """

    def __init__(self, path: Path | None = None, keep: Step = 0) -> None:
        super().__init__(path, keep)
        self._digest = hashlib.sha256()
        if self._file is not None:
            kept = b"".join(islice(whole_lines(self._file), keep))
            self._digest.update(kept)
            self._file.seek(len(kept))
            self._file.truncate()

    def append(self, record: StepRecord) -> None:
        """The next step."""
        line = line_of(record) + b"\n"
        self._digest.update(line)
        if self._file is not None:
            self._file.write(line)

    @property
    def sha256(self) -> str:
        """The digest of the steps so far."""
        return self._digest.hexdigest()
