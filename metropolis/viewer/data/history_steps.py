"""Positions and moments of a run, from its history, while that grows and afterwards.

The history stays in its file: an index keeps, for each chunk, where its first step begins, and the
agents' positions and looks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from metropolis.durable import DamagedError
from metropolis.line_file import Mark, RewoundError
from metropolis.rules.metrics import Metric, metric_named
from metropolis.runtime.folder.history import HistoryLine, bodies_written, read_history
from metropolis.runtime.folder.view_file import ViewFile
from metropolis.trace.schema import Float32, TraceMeta
from metropolis.types import AgentId, Position, Step
from metropolis.viewer.data.chunks import check_number, chunk_steps, count_of, json_bytes
from metropolis.viewer.data.hearing import perceivers
from metropolis.world.appearance import SAYS, Appearance, Look, listeners, look_of, utterances
from metropolis.world.entities import Entity

DOES = "does"
"""The kind of moment at which an agent's look changes."""
Moment = list[Any]
"""Step, agent, kind, text, and what else there is to it or None."""


class _Event(msgspec.Struct):
    source: str
    kind: str
    at: Position
    data: dict[str, Any] = {}


class _Events(msgspec.Struct):
    events: list[_Event] = []


_events_of = msgspec.json.Decoder(_Events).decode


@dataclass(frozen=True)
class _Start:
    """The beginning of a chunk."""

    before: Mark | None
    """The mark of the line before its first one; None: it begins the history."""
    positions: Float32
    looks: tuple[Look, ...]


class HistorySteps:
    """The recorded steps of the run in `folder`.

    `edited`: entities that an edit left at the step at which the run branched off.
    """

    def __init__(
        self,
        history: Path,
        run: str | None,
        view: ViewFile,
        meta: TraceMeta,
        edited: Mapping[Step, Sequence[Entity]],
    ) -> None:
        self._path, self._run, self._view, self._meta = history, run, view, meta
        self._edited = edited
        self._ids = {name: agent for agent, name in enumerate(meta.agents)}
        self._chunk_steps = chunk_steps(len(meta.agents))
        self._looks_written = _looks_decoder(view.appearance)
        self.damage: str | None = None
        """Why the history ends earlier than its file."""
        self._restart()

    @cached_property
    def _metric(self) -> Metric:
        meta = self._meta
        return metric_named(meta.metric, meta.map, meta.max_velocity, meta.graph)

    def _restart(self) -> None:
        self.steps: Step = 0
        self.calls: list[int] = []
        """The number of calls up to and including each step."""
        self._last: Mark | None = None
        self._positions = np.array(self._view.beginning, np.float32)
        self._looks = list(self._view.looks)
        self._starts: list[_Start] = []

    # --- index

    def refresh(self) -> set[int]:
        """Read the steps that are new; return the numbers of the chunks that changed."""
        if self._last is not None:
            self._path.stat()  # raises FileNotFoundError: the folder may have been removed
        first = self.steps
        try:
            try:
                self._add_new()
            except RewoundError:  # a run that resumes repeats its last steps
                self._restart()
                first = 0
                self._add_new()
            self.damage = None
        except DamagedError as error:
            self.damage = f"{error}"
        except msgspec.DecodeError as error:
            self.damage = f"{self._path}: step {self.steps} cannot be read: {error}"
        if not self._starts:
            self._starts.append(self._start())
            return {0}
        if self.steps == first:
            return set()
        return set(range(first // self._chunk_steps, self.chunks))

    def _add_new(self) -> None:
        for line in read_history(self._path, self._run, self._last):
            self._add(line)

    def _add(self, line: HistoryLine) -> None:
        self._edit(self.steps, self._positions, self._looks)
        if (
            self.steps % self._chunk_steps == 0
            and len(self._starts) * self._chunk_steps <= self.steps
        ):
            self._starts.append(self._start())
        self._move(line.content, self._positions)
        for agent, look in self._looks_of(line.content):
            self._looks[agent] = look
        self.calls.append(line.calls)
        self._last = line.line.mark
        self.steps += 1

    def _start(self) -> _Start:
        return _Start(self._last, self._positions.copy(), tuple(self._looks))

    def _move(self, content: bytes, positions: Float32) -> None:
        for name, at in bodies_written(content):
            if name in self._ids:
                positions[self._ids[name]] = at

    def _looks_of(self, content: bytes) -> Iterator[tuple[AgentId, Look]]:
        for name, state in self._looks_written(content):
            if name in self._ids:
                yield self._ids[name], look_of(self._view.appearance, state)

    def _edit(self, step: Step, positions: Float32, looks: list[Look]) -> None:
        for entity in self._edited.get(step, ()):
            if (agent := self._ids.get(entity.name)) is not None:
                positions[agent] = entity.position
                looks[agent] = look_of(self._view.appearance, entity.state)

    # --- chunks

    @property
    def chunks(self) -> int:
        """The number of chunks; one if no step is recorded."""
        return max(1, count_of(self.steps, self._chunk_steps))

    def positions(self, number: int) -> bytes:
        """See `Steps`."""
        start = self._start_of(number)
        positions = start.positions.copy()
        rows = []
        for step, line in self._lines(number, start):
            self._edit(step, positions, list(start.looks))
            rows.append(positions.tobytes())
            self._move(line.content, positions)
        return b"".join([*rows, positions.tobytes()])

    def moments(self, number: int) -> bytes:
        """JSON: what the agents do at the chunk's first step, and what happens in its steps."""
        start = self._start_of(number)
        positions, looks = start.positions.copy(), list(start.looks)
        moments: list[Moment] = []
        for step, line in self._lines(number, start):
            before = tuple(looks)
            self._edit(step, positions, looks)
            self._move(line.content, positions)
            for agent, look in self._looks_of(line.content):
                looks[agent] = look
            if tuple(looks) != before:
                moments += self._changes(step, before, looks)
            for event in _events_of(line.content).events:
                moments += self._happenings(step, event, positions)
        now = {f"{agent}": msgspec.to_builtins(look) for agent, look in enumerate(start.looks)}
        return json_bytes({"now": now, "moments": moments})

    def _start_of(self, number: int) -> _Start:
        check_number(number, self.chunks, "steps")
        return self._starts[number]

    def _lines(self, number: int, start: _Start) -> Iterator[tuple[Step, HistoryLine]]:
        first = number * self._chunk_steps
        count = min(self._chunk_steps, self.steps - first)
        if count:
            self._path.stat()  # raises FileNotFoundError: the folder may have been removed
        lines = read_history(self._path, self._run, start.before)
        return zip(range(first, first + count), islice(lines, count), strict=False)

    def _changes(
        self, step: Step, before: Sequence[Look], looks: Sequence[Look]
    ) -> Iterator[Moment]:
        for agent, (old, new) in enumerate(zip(before, looks, strict=True)):
            if new is not old and new != old:
                extra = msgspec.to_builtins(new)
                extra.pop("label", None)
                yield [step, agent, DOES, new.label, extra or None]

    def _happenings(self, step: Step, event: _Event, positions: Float32) -> Iterator[Moment]:
        """The moments of an event; `positions` are those of the next step, which perceives it."""
        appearance = self._view.appearance
        named = listeners(appearance, event.kind, event.data)
        for who, kind, text in utterances(appearance, event.kind, event.source, event.data):
            if (agent := self._ids.get(who)) is None:
                continue
            heard: Iterable[AgentId] | None = None
            if named is not None:
                names = dict.fromkeys([*named, event.source])
                heard = (self._ids[name] for name in names if name in self._ids)
            elif kind == SAYS:
                radius = self._meta.perception_radius
                heard = perceivers(self._metric, radius, event.at, positions)
            to = None if heard is None else [other for other in heard if other != agent]
            yield [step, agent, kind, text, None if to is None else {"to": to}]


def _looks_decoder(
    appearance: Appearance,
) -> Callable[[bytes], Iterator[tuple[str, Mapping[str, Any]]]]:
    """A function that reads what a step's line writes to the states of bodies.

    It decodes only the keys that the appearance names, which is much cheaper than all.
    """
    labels, *others = appearance.state_keys
    keys = [*dict.fromkeys([*labels, *others])]
    fields = [f"key{number}" for number in range(len(keys))]
    state_type = msgspec.defstruct(
        "State",
        [(name, Any, None) for name in fields],
        rename=dict(zip(fields, keys, strict=True)),
    )
    body_type = msgspec.defstruct("Body", [("state", state_type)])
    step_type = msgspec.defstruct("Step", [("writes", dict[str, body_type | None], {})])  # type: ignore[valid-type]
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(step_type).decode

    def read(content: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, body in decode(content).writes.items():
            if body is not None:
                values = (getattr(body.state, name) for name in fields)
                yield name, dict(zip(keys, values, strict=True))

    return read
