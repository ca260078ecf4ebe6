"""The records of a run, in the order of steps: history, positions and calls.

Clusters commit out of order; a step is recorded once the floor has passed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from metropolis.llm.journal import Journal
from metropolis.runtime.folder.calls_file import Call, CallsFile
from metropolis.runtime.folder.checkpoint import Past
from metropolis.runtime.folder.history import HistoryWriter
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.run_trace import RunTrace, StepParts, StepsFrom
from metropolis.runtime.live.recorded_dependencies import RecordedDependencies
from metropolis.store.execution import Execution
from metropolis.trace.schema import Float32, TraceMeta
from metropolis.types import Step
from metropolis.world.entities import Entity, Event
from metropolis.world.record import StepRecord


@dataclass
class _Pending:
    """A step that some agents have committed."""

    actions: dict[str, Any] = field(default_factory=dict)
    writes: dict[str, Entity | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    """The executions of the step; empty unless dependencies are recorded."""


class Recorder:
    """Collects commits, and yields complete steps in order."""

    def __init__(
        self,
        names: Sequence[str],
        positions: Float32,
        step: Step,
        history: HistoryWriter,
        calls: CallsFile,
        *,
        keep: bool = True,
        dependencies: RecordedDependencies | None = None,
    ) -> None:
        """`positions` is (agents, 2) at the beginning of `step`; `keep`: keep parts in memory.

        `dependencies` takes the executions, from step 0 on.
        """
        self.history = history
        self.calls_file = calls
        self._names = names
        self._ids = {name: i for i, name in enumerate(names)}
        self._at = positions.copy()
        self.next_step = step
        """The first step not recorded yet."""
        self._pending: dict[Step, _Pending] = defaultdict(_Pending)
        self._keep, self._dependencies = keep, dependencies
        self.parts: list[StepParts] = []
        """The parts of the steps so far, if kept."""

    def commit(self, execution: Execution) -> None:
        """Add the execution of a cluster."""
        pending = self._pending[execution.step]
        pending.actions |= execution.actions
        pending.writes |= execution.writes
        pending.events += execution.events
        for agent, calls in execution.calls.items():
            pending.calls += [(execution.step, agent, call) for call in calls]
        if self._dependencies is not None:
            pending.executions.append(execution)

    def advance(self, floor: Step) -> Iterator[StepRecord]:
        """Record and yield the steps that all agents have committed, one by one."""
        while self.next_step < floor:
            pending = self._pending.pop(self.next_step)
            record = StepRecord(
                self.next_step,
                {name: pending.actions[name] for name in self._names},
                dict(sorted(pending.writes.items())),
                sorted(pending.events, key=lambda event: event.source),
            )
            if self._dependencies is not None:
                self._dependencies.add(self.next_step, pending.executions)
            self._record(record, sorted(pending.calls, key=lambda call: call[1]))
            self.next_step += 1
            yield record

    def _record(self, record: StepRecord, calls: Sequence[Call]) -> None:
        self.calls_file.append(calls)
        self.history.append(record, len(calls))  # last: every step in the history can be forked
        if self._keep:
            self.parts.append((self._at.copy(), list(calls)))
        for name, entity in record.writes.items():
            if name in self._ids and entity is not None:
                self._at[self._ids[name]] = entity.position

    def sync(self, seed: int, journal: Journal | None) -> Past:
        """Make the records survive a power cut; return their marks, for a checkpoint.

        `seed` is the seed of all randomness; `journal` is the run's own, already on disk.
        """
        self.history.sync()
        self.calls_file.sync()
        answers = None if journal is None else journal.mark
        return Past(seed, self.history.sha256, self.calls_file.mark, answers)

    def trace(self, meta: TraceMeta, files: RunDirectory | None, beginning: Float32) -> RunTrace:
        """The trace so far; its steps are read from the run's `files`, if given.

        `beginning` is (agents, 2), at step 0.
        """
        steps = self.next_step

        steps_from: StepsFrom
        if files is None:
            steps_from = partial(_kept_parts, self.parts, steps)
        else:
            steps_from = partial(_read_parts, files, beginning, self._names, steps)
        known = None if self._dependencies is None else self._dependencies.result()
        return RunTrace(meta, steps, steps_from, known)

    def close(self) -> None:
        """Close the files, and end the search for dependencies."""
        if self._dependencies is not None:
            self._dependencies.close()
        self.history.close()
        self.calls_file.close()


# Functions of the module, so that results can be pickled.
def _kept_parts(parts: Sequence[StepParts], end: Step, first: Step) -> Iterator[StepParts]:
    return iter(parts[first:end])


def _read_parts(
    files: RunDirectory, beginning: Float32, names: Sequence[str], end: Step, first: Step
) -> Iterator[StepParts]:
    return islice(files.steps_from(first, beginning, names), end - first)
