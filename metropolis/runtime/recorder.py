"""What a run leaves behind, in the order of steps: history, positions and calls.

Clusters commit out of order; a step is recorded when the floor has passed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from metropolis.llm.agent import CallRecord
from metropolis.rules.metrics import Hops
from metropolis.runtime.history import HistoryWriter, StepsFile, whole_lines
from metropolis.store.outcome import Outcome
from metropolis.trace.schema import Calls, Float32, Trace, TraceMeta
from metropolis.trace.validate import LIMIT
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.world.base import World
from metropolis.world.entities import Entity, Event
from metropolis.world.record import StepRecord

Call = tuple[Step, AgentId, CallRecord]
_decode = msgspec.json.Decoder(Call).decode


@dataclass
class _Pending:
    """A step that some agents have committed."""

    actions: dict[str, Any] = field(default_factory=dict)
    writes: dict[str, Entity | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class Recorder:
    """Collects commits, and gives the steps back in order."""

    def __init__(
        self,
        names: Sequence[str],
        positions: Float32,
        step: Step,
        history: HistoryWriter,
        calls: CallsFile,
    ) -> None:
        """`positions` is (agents, 2) at the beginning of `step`."""
        self.history = history
        self.calls_file = calls
        self._names = names
        self._ids = {name: i for i, name in enumerate(names)}
        self._at = positions.copy()
        self.next_step = step
        """The first step that is not recorded yet."""
        self._pending: dict[Step, _Pending] = defaultdict(_Pending)
        self.positions: list[Float32] = []
        self.calls: list[Call] = []

    def commit(self, outcome: Outcome) -> None:
        """A cluster's step."""
        pending = self._pending[outcome.step]
        pending.actions |= outcome.actions
        pending.writes |= outcome.writes
        pending.events += outcome.events
        for agent, calls in outcome.calls.items():
            pending.calls += [(outcome.step, agent, call) for call in calls]

    def advance(self, floor: Step) -> Iterator[StepRecord]:
        """The steps that everybody has committed now, recorded one by one."""
        while self.next_step < floor:
            pending = self._pending.pop(self.next_step)
            record = StepRecord(
                self.next_step,
                {name: pending.actions[name] for name in self._names},
                dict(sorted(pending.writes.items())),
                sorted(pending.events, key=lambda event: event.source),
            )
            self._record(record, sorted(pending.calls, key=lambda call: call[1]))
            self.next_step += 1
            yield record

    def _record(self, record: StepRecord, calls: Sequence[Call]) -> None:
        self.calls_file.append(calls)
        self.calls_file.flush()
        self.history.append(record)
        self.history.flush()  # last: what the history tells of can be forked
        self.positions.append(self._at.copy())
        self.calls += calls
        for name, entity in record.writes.items():
            if name in self._ids and entity is not None:
                self._at[self._ids[name]] = entity.position

    def flush(self, *, durably: bool = False) -> None:
        """Hand what is recorded to the operating system; `durably`: it survives a power cut."""
        self.history.flush(durably=durably)
        self.calls_file.flush(durably=durably)

    def close(self) -> None:
        """Close the files."""
        self.history.close()
        self.calls_file.close()

    def restore(self, positions: Sequence[Float32]) -> None:
        """Take over what was recorded before this recorder's first step."""
        self.positions = list(positions)
        self.calls = list(self.calls_file.kept)


def calls_below(step: Step, file: BinaryIO) -> Iterator[tuple[bytes, Call]]:
    """The calls of the steps below `step`, each with its line."""
    for line in whole_lines(file):
        call = _decode(line)
        if call[0] >= step:
            return
        yield line, call


class CallsFile(StepsFile):
    """The calls of a run, a line of JSON each, by step; None keeps nothing.

    A file that exists is taken up after the calls of its first `keep` steps, the rest is cut off.
    Raises MetropolisError when these are not `calls` calls, if that is known.
    """

    def __init__(self, path: Path | None = None, keep: Step = 0, calls: int | None = None) -> None:
        super().__init__(path, keep)
        self.kept: list[Call] = []
        if self._file is not None:
            size_bytes = 0
            for line, call in calls_below(keep, self._file):
                self.kept.append(call)
                size_bytes += len(line)
            if calls not in (None, len(self.kept)):
                raise MetropolisError(
                    f"{path}: tells of {len(self.kept)} calls before step {keep}; there were "
                    f"{calls}, so somebody has changed the file"
                )
            self._file.seek(size_bytes)
            self._file.truncate()

    def append(self, calls: Sequence[Call]) -> None:
        """The calls of the next step, by agent."""
        if self._file is None:
            return
        self._file.write(b"".join(msgspec.json.encode(call) + b"\n" for call in calls))


def trace_of(
    world: World,
    names: Sequence[str],
    positions: Sequence[Float32],
    calls: Sequence[Call],
    calls_origin: str,
) -> Trace:
    """The trace of a run, to be replayed under any mode and on any hardware.

    Calls that failed are left out: those that waited for them wait for what these waited for.
    """
    calls, parents = _answered(calls)
    functions = sorted({call.function for _, _, call in calls})
    models = sorted({call.model for _, _, call in calls})

    def column(values: list[int]) -> Any:
        return np.array(values, np.int32)

    count = len(calls)
    texts = any(call.prompt is not None for _, _, call in calls)
    return Trace(
        trace_meta(world, names, calls_origin),
        np.array(positions, np.float32).reshape(-1, len(names), 2),
        Calls(
            step=column([step for step, _, _ in calls]),
            agent=column([agent for _, agent, _ in calls]),
            function=column([functions.index(call.function) for _, _, call in calls]),
            functions=tuple(functions),
            model=column([models.index(call.model) for _, _, call in calls]),
            models=tuple(models),
            # an empty answer took an iteration, too
            prompt_tokens=column([max(1, call.prompt_tokens) for _, _, call in calls]),
            output_tokens=column([max(1, call.output_tokens) for _, _, call in calls]),
            prefix_id=np.full(count, -1, np.int64),
            prefix_tokens=np.zeros(count, np.int32),
            parent_offsets=np.cumsum([0, *map(len, parents)]).astype(np.int64),
            parents=np.array([parent for of in parents for parent in of], np.int64),
            prompt=[call.prompt for _, _, call in calls] if texts else None,
            completion=[call.completion for _, _, call in calls] if texts else None,
        ),
    )


def trace_meta(world: World, names: Sequence[str], calls_origin: str = "recorded") -> TraceMeta:
    """What a trace tells of a world."""
    joint = world.joint_radius  # a negative one couples nobody whom 0 does not
    return TraceMeta(
        name=world.name,
        agents=tuple(names),
        perception_radius=min(world.perception_radius, LIMIT),
        max_velocity=min(world.max_velocity, LIMIT),
        joint_radius=None if joint is None else min(max(joint, 0), LIMIT),
        metric=world.metric.name,
        step_s=world.step_s,
        start=world.start,
        map=world.map,
        graph=world.metric.neighbours if isinstance(world.metric, Hops) else None,
        calls_origin=calls_origin,
        source="a run of metropolis",
    )


def _answered(calls: Sequence[Call]) -> tuple[list[Call], list[list[int]]]:
    """The calls that did not fail, and the indices, among them, of each one's parents."""
    kept: list[Call] = []
    parents: list[list[int]] = []
    stands_for: list[list[int]] = []  # of each call of this agent-step, the kept ones it stands for
    where: tuple[Step, AgentId] | None = None
    for step, agent, call in calls:
        if where != (step, agent):
            where, stands_for = (step, agent), []
        waited = sorted({index for parent in call.parents for index in stands_for[parent]})
        stands_for.append(waited if call.failed else [len(kept)])
        if not call.failed:
            kept.append((step, agent, call))
            parents.append(waited)
    return kept, parents
