"""Writes the timeline of a run while it happens, one pair of files per process.

A batch is one write to the file system, so a killed process loses at most the last interval.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from metropolis.durable import open_regular, reported, write_all
from metropolis.llm.call_log import CallRecord
from metropolis.timeline.columns import NONE, Timeline
from metropolis.timeline.format import (
    CALLS,
    EXECUTIONS,
    ROWS_MAX,
    SCHEMAS,
    Clock,
    Meta,
    file_of,
    files_of,
    schema_of,
)
from metropolis.types import AgentId, Step

INTERVAL_S, INTERVAL_MAX_S = 0.5, 5.0
"""Shortest and longest time between two batches of fewer than ROWS_MAX rows."""
ROWS_AT_ONCE = 65_536
"""The number of rows of a batch when a whole timeline is written."""
INTERVAL_SHARE = 1e-3
"""The interval as a share of the time so far, which bounds the number of small batches."""
NOT_BLOCKED: Mapping[AgentId, AgentId] = {}


class Began(NamedTuple):
    """When the valid execution of an agent-step began, for an agent that may run ahead."""

    now_s: float
    """Time on the clock of the timeline."""
    wall_s: float
    """Unix time."""
    wasted: int
    """The number of wrong executions before it."""


NOT_AHEAD: Mapping[AgentId, Began] = {}


class BatchFile:
    """A stream of Arrow record batches; see `metropolis.timeline.format`."""

    def __init__(self, path: Path, kind: str, meta: Meta) -> None:
        """Create the file. Raises MetropolisError if that fails."""
        self._path, self._schema = path, SCHEMAS[kind]
        self._buffer = BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        with reported(path):
            self._file = open_regular(path, "x")
        self._writer = pa.ipc.new_stream(self._buffer, schema_of(kind, meta), options=options)
        self.write([()] * len(self._schema))  # otherwise the schema comes with the first rows

    def write(self, columns: Sequence[Sequence[Any]]) -> None:
        """Write the columns of one batch, in the order of the schema; None is written as null."""
        arrays = map(pa.array, columns, self._schema.types)
        self.write_batch(pa.RecordBatch.from_arrays([*arrays], schema=self._schema))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        self._writer.write_batch(batch)
        self._drain()

    def close(self) -> None:
        """End the stream and close the file."""
        self._writer.close()
        self._drain()
        self._file.close()

    def _drain(self) -> None:
        with reported(self._path):
            write_all(self._file, self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()


class TimelineWriter:
    """The timeline of a run of `agents` agents; see `Meta` for the other arguments.

    Times are on the run's `clock`, wall times are Unix times. Raises MetropolisError if a file
    cannot be written.
    """

    def __init__(
        self, folder: Path, agents: int, *, clock: Clock, run: str, first_step: Step | None = None
    ) -> None:
        with reported(folder):
            folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((n for kind in SCHEMAS for n, _ in files_of(folder, kind)), default=-1)
        meta = Meta(clock=clock, run=run, agents=agents, number=number, first_step=first_step)
        self._files = {
            kind: BatchFile(file_of(folder, kind, number), kind, meta) for kind in SCHEMAS
        }
        self._rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in SCHEMAS}
        self._running: dict[AgentId, tuple[Any, ...]] = {}
        """Agent -> (step, time and wall time of the dispatch, blocker, cluster) of the execution in
        progress, or of the wait for it; an agent that waits has no times."""
        self._shown: dict[AgentId, tuple[Any, ...]] = {}
        """Agent -> the last value of `_running` that was written."""
        self._began_s = time.monotonic()
        self._due_s = self._began_s + INTERVAL_S

    def dispatched(
        self,
        step: Step,
        agents: Sequence[AgentId],
        now_s: float,
        wall_s: float | None,
        blocked_by: Mapping[AgentId, AgentId] = NOT_BLOCKED,
    ) -> None:
        """Record that the cluster `agents` may run `step` from `now_s` on.

        `wall_s` is None if the wall time is not known. `blocked_by` maps a member to the agent that
        it waited for last.
        """
        for agent in agents:
            self._running[agent] = step, now_s, wall_s, blocked_by.get(agent), agents[0]

    def waiting(self, step: Step, agent: AgentId, blocker: AgentId) -> None:
        """Record that the agent cannot run `step` yet, as it waits for `blocker`."""
        self._running[agent] = step, None, None, blocker, agent

    def committed(
        self,
        step: Step,
        agents: Sequence[AgentId],
        now_s: float,
        wall_s: float | None,
        began: Mapping[AgentId, Began] = NOT_AHEAD,
    ) -> None:
        """Record that the cluster `agents`, which was dispatched, committed `step` at `now_s`.

        `began` has the members that began before the dispatch, or whose first execution was wrong.
        """
        rows = self._rows[EXECUTIONS]
        for agent in agents:
            _, began_s, began_wall_s, blocker, cluster = self._running.pop(agent)
            wasted = 0
            if agent in began:
                blocker = None if began[agent].now_s < began_s else blocker
                began_s, began_wall_s, wasted = began[agent]
            rows.append(
                (step, agent, began_s, now_s, began_wall_s, wall_s, blocker, cluster, wasted)
            )

    def called(
        self,
        step: Step,
        agent: AgentId,
        calls: Sequence[CallRecord],
        numbers: Iterable[int],
        *,
        wasted: bool = False,
    ) -> None:
        """Record `calls` of an agent-step that was committed, or of one that was `wasted`.

        `numbers` are the numbers of the calls within the agent-step.
        """
        rows = self._rows[CALLS]
        for number, call in zip(numbers, calls, strict=False):
            rows.append(
                (
                    step,
                    agent,
                    number,
                    call.function,
                    call.model,
                    call.instance,
                    call.sent,
                    call.started,
                    None if call.failed else call.completed,
                    call.prompt_tokens,
                    call.output_tokens,
                    call.failed,
                    wasted,
                )
            )

    def advance(self) -> None:
        """Write what is due; call it after every event and while nothing happens."""
        is_full = any(len(rows) >= ROWS_MAX for rows in self._rows.values())
        if is_full or time.monotonic() >= self._due_s:
            self.flush()

    def flush(self) -> None:
        """Write everything so far, executions in progress and waits included."""
        now_s = time.monotonic()
        interval_s = INTERVAL_SHARE * (now_s - self._began_s)
        self._due_s = now_s + min(max(INTERVAL_S, interval_s), INTERVAL_MAX_S)
        for agent, running in self._running.items():
            if self._shown.get(agent) is not running:
                self._shown[agent] = running
                step, began_s, began_wall_s, blocker, cluster = running
                self._rows[EXECUTIONS].append(
                    (step, agent, began_s, None, began_wall_s, None, blocker, cluster, 0)
                )
        for kind, rows in self._rows.items():
            for first in range(0, len(rows), ROWS_MAX):
                self._files[kind].write([*zip(*rows[first : first + ROWS_MAX], strict=True)])
            rows.clear()

    def close(self) -> None:
        """Write the rest and end the files."""
        self.flush()
        for file in self._files.values():
            file.close()


def write_timeline(folder: Path, timeline: Timeline) -> None:
    """Write a whole timeline as one pair of files; `timeline.meta.number` must be new."""
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
    calls = timeline.calls
    for kind, rows in ((EXECUTIONS, timeline.executions), (CALLS, calls)):
        columns = []
        for field in SCHEMAS[kind]:
            values = getattr(rows, field.name)
            if pa.types.is_string(field.type):
                names = calls.functions if field.name == "function" else calls.models
                texts = pa.array(names, pa.string())
                columns.append(pa.DictionaryArray.from_arrays(values, texts).cast(pa.string()))
                continue
            missing = values == NONE if pa.types.is_integer(field.type) else np.isnan(values)
            columns.append(pa.array(values, field.type, mask=missing if field.nullable else None))
        file = BatchFile(file_of(folder, kind, timeline.meta.number), kind, timeline.meta)
        for batch in pa.Table.from_arrays(columns, schema=SCHEMAS[kind]).to_batches(ROWS_AT_ONCE):
            file.write_batch(batch)
        file.close()
