"""Traces on disk: one Parquet file each; docs/trace-format.md specifies the format.

A row is one agent at one step. Reading checks everything (see `metropolis.trace.validate`); an
invalid file is refused in one sentence that names the row, counted from 0, and the field.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from metropolis.names import cut
from metropolis.trace.call_columns import CALL_TYPE, call_structs, read_calls
from metropolis.trace.column_types import check_types, completed
from metropolis.trace.dependency_columns import DEPENDS_ON, dependency_lists, read_dependencies
from metropolis.trace.metadata import meta_from_json, meta_to_json
from metropolis.trace.schema import Trace, TraceMeta
from metropolis.trace.shown_column import SHOWS, read_shows, shows_column
from metropolis.trace.validate import Place, validate
from metropolis.types import MetropolisError

METADATA_KEY = b"metropolis"
IN_RUN = "trace.parquet"
"""The name of the trace in a run's folder."""
RUN_FILES = {IN_RUN, "run.json", "store.json", "view.json", "replay.json"}
"""The files of a run's folder that are not lines."""
SCHEMA = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        pa.field("agent", pa.int32(), nullable=False),
        pa.field("x", pa.float32(), nullable=False),
        pa.field("y", pa.float32(), nullable=False),
        pa.field("calls", pa.list_(CALL_TYPE)),
    ]
)
_WHOLE = pa.schema([*SCHEMA, DEPENDS_ON, SHOWS])
_INT32_MAX = 2**31 - 1
_DAMAGE = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError)
"""The errors pyarrow raises on damaged Parquet files."""


def check_target(path: str | Path, *sources: Path) -> Path:
    """The file that a command's write to `path` creates or replaces, with links resolved.

    Raises `MetropolisError` as `write_trace` does, or if the file is one of `sources`, a JSON or
    CSV file in one of them, or of a run or a recorded replay.
    """
    target = _writable(path)
    if target.exists() and any(
        source.exists()
        and (
            target.samefile(source)
            or (target.suffix in (".json", ".csv") and target.is_relative_to(source.resolve()))
        )
        for source in sources
    ):
        raise MetropolisError(f"{path}: is read as input; --out should be another file")
    for folder in target.parents:
        if target.parent == folder:
            is_own = target.name in RUN_FILES or target.suffix == ".jsonl"
        else:
            is_own = target.exists()
        for index, kind in (("run.json", "run"), ("replay.json", "recording")):
            if is_own and (folder / index).is_file():
                raise MetropolisError(
                    f"{path}: belongs to the {kind} in {folder}; --out should be another file"
                )
    return target


def _writable(path: str | Path) -> Path:
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not os.path.isfile(target):
        reason = "it is not a regular file"
    elif not os.path.isdir(target.parent):
        reason = "its folder does not exist"
    elif not os.access(target.parent, os.W_OK | os.X_OK):
        reason = "its folder may not be written to"
    else:
        return target
    raise MetropolisError(
        f"{path}: cannot be written ({reason}); it should be a file in a folder you may write to"
    )


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write `trace` to `path` atomically; an existing file keeps its mode.

    Raises `MetropolisError` if the trace is invalid or `path` is not writable.
    """
    write_pieces([trace], path)


def write_pieces(pieces: Iterable[Trace], path: str | Path, mode: int = 0o666) -> None:
    """Like `write_trace`, for a trace in one or more pieces of consecutive steps.

    Only one piece is in memory at a time. The trace starts when its first piece does. `mode`: that
    of a new file, limited by the umask.
    """
    path = Path(path)
    target = _writable(path)
    unfinished = target.parent / f".{target.name}.{uuid4().hex[:8]}"
    try:
        with open(unfinished, "xb", opener=partial(os.open, mode=mode)) as file:
            _write(pieces, path, file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise MetropolisError(
            f"{path}: cannot be written ({error.strerror or error});"
            " it should be a file in a folder you may write to"
        ) from None
    finally:
        with suppress(OSError):  # the file does not exist, or the error has been raised already
            unfinished.unlink()


def _write(pieces: Iterable[Trace], path: Path, file: BinaryIO) -> None:
    writer, first = None, 0
    try:
        for piece in pieces:
            validate(piece, path, _row_place(path, piece.meta.agents, first))
            if writer is None:
                metadata = {METADATA_KEY: meta_to_json(piece.meta).encode()}
                schema = SCHEMA.with_metadata(metadata)
                if piece.dependencies is not None:
                    schema = schema.append(DEPENDS_ON)
                if piece.shown is not None:
                    schema = schema.append(SHOWS)
                writer = pq.ParquetWriter(
                    file, schema, compression="zstd", write_page_checksum=True
                )
            writer.write_table(pa.table(_columns(piece, first), schema))
            first += piece.steps
    finally:
        if writer is not None:
            writer.close()


def _columns(trace: Trace, first: int) -> list[pa.Array]:
    """The columns of a trace whose steps are numbered from `first`."""
    steps, agents = trace.positions.shape[:2]
    columns = [
        pa.array(np.repeat(np.arange(first, first + steps, dtype=np.int32), agents)),
        pa.array(np.tile(np.arange(agents, dtype=np.int32), steps)),
        pa.array(trace.positions[..., 0].ravel().astype(np.float32)),
        pa.array(trace.positions[..., 1].ravel().astype(np.float32)),
        pa.ListArray.from_arrays(trace.call_offsets().astype(np.int32), call_structs(trace)),
    ]
    if trace.dependencies is not None:
        columns.append(dependency_lists(trace.dependencies))
    if trace.shown is not None:
        columns.append(shows_column(trace.shown, steps, agents))
    return columns


def read_trace(path: str | Path) -> Trace:
    """Read the trace at `path`, a file or the folder of a run.

    Raises `MetropolisError` if any part of it is invalid.
    """
    path = Path(path)
    if os.path.isdir(path):
        if not (path / IN_RUN).is_file():
            if (path / "run.json").is_file():
                raise MetropolisError(
                    f"{path}: the run has not ended, and its trace is written at the end; continue "
                    f"it with: metropolis resume {path}"
                )
            raise MetropolisError(
                f"{path}: is a folder without {IN_RUN}; name a trace or the folder of a run"
            )
        path /= IN_RUN
    _check_regular(path)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            meta = _meta(file, path)
            schema = completed(file.schema_arrow, _WHOLE)
            check_types(schema, path)
            names = [name for name in schema.names if name in _WHOLE.names]
            table = file.read(columns=names).combine_chunks()
            table.validate(full=True)
            if schema != file.schema_arrow:
                table = table.cast(pa.schema([schema.field(name) for name in names]))
    except _DAMAGE as error:
        raise MetropolisError(_unreadable(path, error)) from None
    agents = len(meta.agents)
    steps = _steps(table, meta, path)
    place = _row_place(path, meta.agents)
    with np.errstate(over="ignore"):  # overflow yields infinity, which is refused below
        axes = [_numbers(table.column(axis), axis, path).astype(np.float32) for axis in ("x", "y")]
    positions = np.stack(axes, axis=-1).reshape(steps, agents, 2)
    dependencies = None
    if DEPENDS_ON.name in table.column_names:
        lists = table.column(DEPENDS_ON.name).chunk(0)
        dependencies = read_dependencies(lists, agents, place)
    shown = None
    if SHOWS.name in table.column_names:
        shown = read_shows(table.column(SHOWS.name).chunk(0), agents, place)
    calls = read_calls(table.column("calls").chunk(0), agents, place)
    trace = Trace(meta, positions, calls, dependencies, shown)
    validate(trace, path, place)
    return trace


def read_meta(path: Path) -> TraceMeta:
    """The metadata of the trace in the file `path`. Raises MetropolisError if it is invalid."""
    _check_regular(path)
    try:
        with pq.ParquetFile(path) as file:
            return _meta(file, path)
    except _DAMAGE as error:
        raise MetropolisError(_unreadable(path, error)) from None


def _check_regular(path: Path) -> None:
    try:
        # A name such as s3:/a/b without a file would be a URL for pyarrow.
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise MetropolisError(_unreadable(path, error)) from None
    if not stat.S_ISREG(mode):  # reading a pipe waits for its writer
        raise MetropolisError(f"{path}: is not a regular file; name a trace or a run's folder")


def _meta(file: pq.ParquetFile, path: Path) -> TraceMeta:
    metadata = file.metadata.metadata or {}
    if METADATA_KEY not in metadata:
        raise MetropolisError(
            f"{path}: is Parquet but not a trace: its key-value metadata should have an"
            f" entry {METADATA_KEY.decode()!r}, as docs/trace-format.md specifies"
        )
    return meta_from_json(metadata[METADATA_KEY], path)


def _row_place(path: Path, agents: tuple[str, ...], first: int = 0) -> Place:
    return lambda step, agent: (
        f"{path}, row {(first + step) * len(agents) + agent} (step {first + step}, agent "
        f"{cut(agents[agent])})"
    )


def _unreadable(path: Path, error: BaseException) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"{path}: does not exist; it should be a trace, a Parquet file"
    if isinstance(error, PermissionError):
        return f"{path}: may not be read by this user; it should be a readable trace"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{path}: cannot be read ({error.strerror}); it should be a readable trace"
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if path.name == IN_RUN and (path.parent / "run.json").is_file():
        return (
            f"{path}: is damaged ({reason}); remove it, and write it again with: "
            f"metropolis resume {path.parent}"
        )
    return (
        f"{path}: is not an intact Parquet file ({reason}); it should be a trace written by"
        " `metropolis trace import` or as docs/trace-format.md specifies"
    )


def _numbers(column: pa.ChunkedArray, name: str, path: Path) -> npt.NDArray[Any]:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise MetropolisError(f"{path}, row {row}: {name} is null; it should be a number")
    return np.asarray(column.to_numpy())


def _steps(table: pa.Table, meta: TraceMeta, path: Path) -> int:
    """The number of steps; checks that the rows are every agent at every step, in order."""
    agents, rows = len(meta.agents), table.num_rows
    if not rows or not agents:
        raise MetropolisError(
            f"{path}: has {rows} rows for {agents} agents; it should have one per agent and step"
        )
    step, agent = (_numbers(table.column(name), name, path) for name in ("step", "agent"))
    for name, value, limit in (("step", step, _INT32_MAX), ("agent", agent, agents)):
        if (bad := (value < 0) | (value >= limit)).any():
            row = int(np.argmax(bad))
            raise MetropolisError(
                f"{path}, row {row}: {name} is {value[row]}; it should be 0 to {limit - 1}"
            )
    key = step.astype(np.int64) * agents + agent
    expected = np.arange(rows + 1)
    wrong = np.append(key, -1) != expected
    row = int(np.argmax(wrong))
    if row == rows and rows % agents == 0:
        return int(rows // agents)
    missing = divmod(row, agents)
    if row < rows and key[row] < row:
        problem = (
            f"step {step[row]}, agent {cut(meta.agents[agent[row]])} occurs here again after row"
            f" {key[row]}; each agent should have one row per step"
        )
    elif (key == row).any():
        later = int(np.argmax(key == row))
        problem = (
            f"step {missing[0]}, agent {cut(meta.agents[missing[1]])} should be here but"
            f" is in row {later}; rows should be sorted by step, then agent"
        )
    elif (step == missing[0]).any():
        problem = (
            f"agent {cut(meta.agents[missing[1]])} is missing at step {missing[0]};"
            f" every step should have a row for each of the {agents} agents"
        )
    else:
        problem = f"step {missing[0]} is missing; steps should follow one another from 0"
    raise MetropolisError(f"{path}, row {row}: {problem}")
