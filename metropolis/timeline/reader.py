"""Reads timelines: whole, or what is new since the last look.

A stream of which the end is missing was written by a process that was killed, or is being written:
its batches count up to the first one that is incomplete or damaged. The files have no checksums: a
batch also counts as damaged if it has values that no run has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metropolis.durable import readable
from metropolis.timeline.columns import NONE, Calls, Executions, Timeline
from metropolis.timeline.format import (
    CALLS,
    EXECUTIONS,
    KEYS,
    SCHEMAS,
    Meta,
    file_of,
    files_of,
    meta_of,
)
from metropolis.types import MetropolisError

_UNTHREADED = pa.ipc.IpcReadOptions(use_threads=False)
"""Threads cost more than they save with small batches."""
_INCOMPLETE = (pa.ArrowException, EOFError, OSError, ValueError, MemoryError, OverflowError)
"""The errors of pyarrow at the end, in a batch that is being written, and in a damaged one."""
_AGENTS = ("agent", "cluster", "blocked_by")
"""The columns that name an agent."""
_TIME_MAX_S = 1e12
"""The latest time, 30,000 years: microseconds of it fit into 64 bits."""


@dataclass
class _File:
    path: Path
    kind: str
    read_bytes: int = 0
    meta: Meta | None = None
    _schema: bytes = b""
    """The beginning of the file, up to the first batch."""
    is_cut: bool = False
    """Whether a part of it is incomplete or damaged."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The complete batches that have not been read.

        Raises MetropolisError if it is a pipe or a device, which may never end.
        """
        if self.path.exists() and not self.path.is_file():
            raise MetropolisError(f"{self.path}: is not a file; it should be an Arrow stream")
        with self.path.open("rb") as file:
            file.seek(self.read_bytes)
            with readable(self.path):
                content = pa.BufferReader(self._schema + file.read())
        before = self.read_bytes - len(self._schema)
        try:
            stream = pa.ipc.open_stream(content, options=_UNTHREADED)
            if self.meta is None:
                self.meta = meta_of(stream.schema, self.path, self.kind)
                self.read_bytes = content.tell()
                content.seek(0)
                self._schema = content.read(self.read_bytes)
            while True:
                batch = stream.read_next_batch()
                batch.validate(full=True)
                if not _is_possible(batch, self.meta.agents):
                    raise ValueError
                self.read_bytes = before + content.tell()
                yield batch
        except StopIteration:
            self.is_cut = False
        except _INCOMPLETE:
            self.is_cut = True


def _is_possible(batch: pa.RecordBatch, agents: int) -> bool:
    """Whether a run of `agents` agents can have the values of `batch`."""
    for field_, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count and not field_.nullable:
            return False
        values = column.drop_null()
        if pa.types.is_floating(field_.type):
            possible = np.abs(values.to_numpy()) <= _TIME_MAX_S
        elif pa.types.is_integer(field_.type) and field_.name != "number":
            limit = agents if field_.name in _AGENTS else np.inf
            possible = (values.to_numpy() >= 0) & (values.to_numpy() < limit)
        else:
            continue
        if not possible.all():
            return False
    return True


@dataclass
class TimelineFollower:
    """Reads the timeline in `folder` piece by piece, while it grows or afterwards.

    Raises MetropolisError if a file is of another format, or the files are of different runs.
    """

    folder: Path
    _files: dict[Path, _File] = field(default_factory=dict)

    def poll(self) -> Timeline | None:
        """The rows that are new since the last call; None: there was none ever.

        A row replaces an earlier one with the same step, agent and, of calls, number. If
        `meta.number` grows, no row of an earlier call from `meta.first_step` on counts.
        """
        tables = {kind: self._new_rows(kind) for kind in SCHEMAS}
        metas = {path: file.meta for path, file in self._files.items() if file.meta is not None}
        if not metas:
            return None
        newest_path, newest = max(metas.items(), key=lambda item: item[1].number)
        for path, meta in metas.items():
            if (meta.run, meta.agents) != (newest.run, newest.agents):
                raise MetropolisError(
                    f"{path}: is not of the same run and agents as {newest_path}; restore the "
                    "timeline of this run"
                )
        executions = Executions(**_columns(tables[EXECUTIONS], EXECUTIONS))
        return Timeline(newest, executions, _calls(tables[CALLS]))

    @property
    def damage(self) -> str | None:
        """A sentence, if a file is missing, incomplete or damaged, as far as `poll` has read it."""
        numbers = {n for kind in SCHEMAS for n, _ in files_of(self.folder, kind)}
        for path in (file_of(self.folder, kind, n) for kind in SCHEMAS for n in sorted(numbers)):
            if path not in self._files or self._files[path].is_cut:
                return f"{path}: is missing, incomplete or damaged; calls or times may be missing."
        return None

    def _new_rows(self, kind: str) -> pa.Table:
        found = SCHEMAS[kind].empty_table()
        for _, path in files_of(self.folder, kind):
            file = self._files.setdefault(path, _File(path, kind))
            is_new = file.meta is None
            batches = list(file.batches())
            if is_new and file.meta is not None and file.meta.first_step is not None:
                found = found.filter(pa.array(found["step"].to_numpy() < file.meta.first_step))
            if batches:
                found = pa.concat_tables([found, pa.Table.from_batches(batches)])
        return found


def read_timeline(folder: str | Path) -> Timeline:
    """The timeline in `folder`, a folder `timeline` or one that contains it.

    Raises MetropolisError if there is none, or one of another format.
    """
    folder = Path(folder)
    inner = folder / "timeline"
    follower = TimelineFollower(inner if inner.is_dir() else folder)
    found = follower.poll()
    if found is None:
        raise MetropolisError(
            f"{folder}: contains no timeline; it should be the folder of a run that was recorded, "
            "or of a lane of `metropolis replay --record`"
        )
    return replace(found, damage=follower.damage)


def _columns(table: pa.Table, kind: str) -> dict[str, npt.NDArray[Any]]:
    """The columns by name, sorted by key; of rows with equal keys the last one."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if column.null_count:
            column = column.fill_null(np.nan if pa.types.is_floating(column.type) else NONE)
        columns[name] = column.to_numpy()
    keys = [columns[name] for name in KEYS[kind]]
    order = np.lexsort(keys[::-1])
    is_last = np.ones(len(order), np.bool_)
    if len(order):
        same = np.all([key[order][1:] == key[order][:-1] for key in keys], axis=0)
        is_last[:-1] = ~same
    rows = order[is_last]
    return {name: values[rows] for name, values in columns.items()}


def _calls(table: pa.Table) -> Calls:
    names: dict[str, Any] = {}
    for name in ("function", "model"):
        encoded = table[name].combine_chunks().dictionary_encode()
        names[f"{name}s"] = tuple(encoded.dictionary.to_pylist())
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, encoded.indices)
    columns: dict[str, Any] = _columns(table, CALLS)
    return Calls(**columns, **names)
