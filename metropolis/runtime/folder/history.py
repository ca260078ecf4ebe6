"""The history of a run: one JSON line per step, identical in every mode, and its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from metropolis.durable import DamagedError
from metropolis.line_file import Format, Line, Mark, read_lines, with_content
from metropolis.runtime.folder.continued_file import ContinuedFile
from metropolis.types import Position, Step
from metropolis.world.encoding import (
    UNENCODABLE,
    check_actions,
    entity_from_json,
    entity_to_json,
    event_from_json,
    event_to_json,
    plain,
)
from metropolis.world.record import StepRecord

HISTORY = Format(
    "metropolis history",
    1,
    "resume the run, one in a store with --store memory: lost steps are repeated from its last "
    "intact checkpoint and its journal",
)
REPEAT_DIFFERS = (
    "repeated steps of the run differ from the recorded ones: its world, agents or model have "
    "changed since, its journal lacks answers, or an agent keeps something outside its fields "
    "(metropolis world check finds that)"
)
_CALLS = b'"calls":'
_encoder = msgspec.json.Encoder(enc_hook=plain, order="sorted")


def line_of(record: StepRecord) -> bytes:
    """The canonical line of a step, without newline; it omits actions that are None.

    Raises MetropolisError if a value is not representable in JSON.
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
    except UNENCODABLE:
        check_actions(record.step, record.actions)  # the rest was checked when it was written
        raise


def record_of(line: bytes) -> StepRecord:
    """The inverse of `line_of`; actions have the types of JSON."""
    content = msgspec.json.decode(line)
    writes = {
        name: entity and entity_from_json(name, entity)
        for name, entity in content.get("writes", {}).items()
    }
    events = [event_from_json(event) for event in content.get("events", [])]
    return StepRecord(content["step"], content.get("actions", {}), writes, events)


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """A step in the file."""

    line: Line
    content: bytes
    """The canonical line."""
    calls: int
    """The number of calls up to and including this step."""


class _Body(msgspec.Struct):
    at: Position


class _Written(msgspec.Struct):
    writes: dict[str, _Body | None] = {}


_written = msgspec.json.Decoder(_Written).decode


def bodies_written(content: bytes) -> list[tuple[str, Position]]:
    """The positions that a step's canonical line changes; much cheaper than `record_of`."""
    writes = _written(content).writes
    return [(name, body.at) for name, body in writes.items() if body is not None]


def read_history(
    path: Path, run: str | None = None, after: Mark | None = None
) -> Iterator[HistoryLine]:
    """The steps in order; see `metropolis.line_file.read_lines`."""
    return map(_history_line, read_lines(path, HISTORY, run, after))


def _history_line(line: Line) -> HistoryLine:
    calls, _, _ = line.fields.removeprefix(_CALLS).partition(b",")
    return HISTORY.decoded(line, lambda content: HistoryLine(line, content, int(calls)))


class HistoryWriter(ContinuedFile):
    """Appends steps in order; updates the digest, and writes a file of `run` if `path` is given.

    An existing file is continued after its first `keep` steps: later ones are cut off when the next
    step is appended, until then nothing is lost. Raises MetropolisError if the steps to keep are
    damaged.
    """

    def __init__(self, path: Path | None = None, keep: Step = 0, run: str | None = None) -> None:
        super().__init__(path, HISTORY, run)
        self._digest, self._steps = hashlib.sha256(), keep
        self.calls = 0
        """The number of calls in the steps so far."""
        self._before: tuple[Step, str] = 0, ""
        self.notes: list[str] = []
        """Extended if repeated steps differ from those that were cut off."""
        if path is not None:
            self._read(path, keep)
            if self.recorded == keep:
                self._cut()

    def _read(self, path: Path, keep: Step) -> None:
        lines = map(_history_line, self._lines())
        found = 0
        for last in islice(lines, keep):
            self._digest.update(last.content + b"\n")
            self._kept, self.calls = last.line, last.calls
            found += 1
        if found < keep:
            raise HISTORY.damaged(path, found + 2, f"it ends before step {keep}")
        digest = self._digest.copy()
        with suppress(DamagedError):
            for cut in lines:
                digest.update(cut.content + b"\n")
                found += 1
        self._before = found, digest.hexdigest()

    def append(self, record: StepRecord, calls: int = 0) -> None:
        """Append the next step; `calls` is its number of calls."""
        self.append_line(line_of(record), calls)

    def append_line(self, content: bytes, calls: int) -> None:
        """Append the next step as its canonical line."""
        self._cut()
        self._digest.update(content + b"\n")
        self.calls += calls
        self._steps += 1
        self._write([with_content(content, _CALLS + b"%d," % self.calls)])
        steps, sha256 = self._before
        if steps == self._steps and sha256 != self.sha256:
            self.notes.append(REPEAT_DIFFERS)

    @property
    def recorded(self) -> Step:
        """The number of steps that the file had."""
        return self._before[0]

    @property
    def sha256(self) -> str:
        """The digest of the steps so far."""
        return self._digest.hexdigest()
