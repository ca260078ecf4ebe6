"""Files of a timeline: cut anywhere, growing, damaged, or of another format."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from metropolis.timeline.columns import Timeline
from metropolis.timeline.format import (
    CALLS,
    EXECUTIONS,
    METADATA_KEY,
    SCHEMAS,
    Meta,
    file_of,
    schema_of,
)
from metropolis.timeline.reader import TimelineFollower, read_timeline
from metropolis.timeline.writer import TimelineWriter
from metropolis.types import MetropolisError

AGENTS = 3


def write(folder: Path, batches: int = 4) -> None:
    """A timeline in which every batch holds a step; its last execution is in progress."""
    writer = TimelineWriter(folder, AGENTS, clock="simulated", run="it")
    for step in range(batches):
        writer.dispatched(step, (0, 2), float(step), step + 100.0, {2: 1} if step else {})
        writer.committed(step, (0, 2), step + 0.5, step + 100.5)
        writer.dispatched(step, (1,), step + 0.5, step + 100.5)
        writer.flush()
        writer.committed(step, (1,), step + 1.0, step + 101.0)
    writer.dispatched(batches, (1,), float(batches), None)
    writer.close()


def rows_of(found: Timeline) -> dict[tuple[int, int], float]:
    rows = found.executions
    keys = zip(rows.step.tolist(), rows.agent.tolist(), strict=True)
    return dict(zip(keys, np.nan_to_num(rows.committed_s, nan=-1).tolist(), strict=True))


def test_a_file_cut_anywhere_gives_its_complete_batches(tmp_path: Path) -> None:
    write(tmp_path, batches=1)
    path, whole = file_of(tmp_path, EXECUTIONS, 0), rows_of(read_timeline(tmp_path))
    assert whole == {(0, 0): 0.5, (0, 1): 1.0, (0, 2): 0.5, (1, 1): -1}
    seen = set()
    for size in reversed(range(path.stat().st_size)):
        os.truncate(path, size)
        found = rows_of(read_timeline(tmp_path))
        assert all(whole[key] == value or value == -1 for key, value in found.items())
        seen.add(len(found))
    assert seen == {0, 3, 4}


def test_a_follower_sees_every_row_once_it_is_complete(tmp_path: Path) -> None:
    write(source := tmp_path / "whole")
    folder, draw = tmp_path / "growing", random.Random(1)
    follower = TimelineFollower(folder)
    assert follower.poll() is None
    folder.mkdir()
    found: dict[tuple[int, int], float] = {}
    content = file_of(source, EXECUTIONS, 0).read_bytes()
    new = []
    for size in [*sorted(draw.sample(range(len(content)), 40)), len(content)]:
        file_of(folder, EXECUTIONS, 0).write_bytes(content[:size])
        if (piece := follower.poll()) is not None:
            found |= rows_of(piece)
            new.append(len(piece.executions))
    assert found == rows_of(read_timeline(source))
    assert sum(new) == 4 * 3 + 3 + 2  # each row of agent 1 occurs twice
    assert 0 in new


def test_damage_is_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    path = file_of(tmp_path, EXECUTIONS, 0)
    content, whole, draw = path.read_bytes(), rows_of(read_timeline(tmp_path)), random.Random(2)
    fewer = 0
    for _ in range(150):
        at = draw.randrange(len(content))
        flipped = bytes([content[at] ^ 1 << draw.randrange(8)])
        path.write_bytes(content[:at] + flipped + content[at + 1 :])
        with suppress(MetropolisError):  # its metadata are damaged
            fewer += len(rows_of(read_timeline(tmp_path))) < len(whole)
    assert fewer > 10


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        *((kind, "agent", value) for kind in SCHEMAS for value in (-1, AGENTS, 2**31 - 1, None)),
        (EXECUTIONS, "step", -1),
        (EXECUTIONS, "cluster", AGENTS),
        (EXECUTIONS, "blocked_by", AGENTS),
        (EXECUTIONS, "dispatched_s", float("inf")),
        (EXECUTIONS, "committed_s", 1e300),
        (CALLS, "sent_s", float("nan")),
        (CALLS, "instance", -5),
        (CALLS, "prompt_tokens", -1),
    ],
)
def test_values_that_no_run_has_are_damage(
    tmp_path: Path, kind: str, column: str, value: float | None
) -> None:
    row = {"step": 0, "agent": 1, "dispatched_s": 0.0, "cluster": 1, "wasted": 0}
    if kind == CALLS:
        row = {"step": 0, "agent": 1, "number": -1, "function": "plan", "model": "", "sent_s": 0.0}
        row |= {"prompt_tokens": 1, "output_tokens": 1, "failed": False, "wasted": False}
    meta = Meta(clock="real", run="it", agents=AGENTS, number=0)
    schema, path = schema_of(kind, meta), file_of(tmp_path, kind, 0)
    with pa.OSFile(f"{path}", "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for each in (row, row | {"step": 1, column: value}, row | {"step": 2}):
            columns = [pa.array([each.get(field.name)], field.type) for field in schema]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    (other,) = {*SCHEMAS} - {kind}
    with pa.OSFile(f"{file_of(tmp_path, other, 0)}", "wb") as file:
        pa.ipc.new_stream(file, schema_of(other, meta)).close()
    found = read_timeline(tmp_path)
    rows = found.calls if kind == CALLS else found.executions
    assert rows.step.tolist() == [0]
    assert (found.damage or "").startswith(f"{path}: is missing, incomplete or damaged")


def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "it")
    assert read_timeline(tmp_path / "it").damage is None
    path = file_of(tmp_path / "it", CALLS, 0)
    other = TimelineWriter(tmp_path / "another", AGENTS, clock="simulated", run="another")
    other.close()
    path.write_bytes(file_of(tmp_path / "another", CALLS, 0).read_bytes())
    with pytest.raises(MetropolisError, match="is not of the same run and agents as"):
        read_timeline(tmp_path / "it")


@pytest.mark.parametrize("kind", [EXECUTIONS, CALLS])
def test_other_formats_are_refused(tmp_path: Path, kind: str) -> None:
    meta = Meta(clock="real", run="it", agents=1, number=0)
    wrong = [
        {},
        {METADATA_KEY: b"{}"},
        {METADATA_KEY: b"["},
        {METADATA_KEY: msgspec.json.encode(msgspec.structs.replace(meta, version=2))},
        {METADATA_KEY: msgspec.json.encode(msgspec.to_builtins(meta) | {"clock": "sundial"})},
    ]
    for metadata in wrong:
        schema = SCHEMAS[kind].with_metadata(metadata)
        with pa.OSFile(f"{file_of(tmp_path, kind, 0)}", "wb") as file:
            pa.ipc.new_stream(file, schema).close()
        with pytest.raises(MetropolisError, match="is not of the format metropolis-timeline"):
            read_timeline(tmp_path)
    other = pa.schema([pa.field("step", pa.int64())], {METADATA_KEY: msgspec.json.encode(meta)})
    with pa.OSFile(f"{file_of(tmp_path, kind, 0)}", "wb") as file:
        pa.ipc.new_stream(file, other).close()
    with pytest.raises(MetropolisError, match="is not of the format metropolis-timeline"):
        read_timeline(tmp_path)


def test_a_folder_without_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match=f"{tmp_path}: contains no timeline"):
        read_timeline(tmp_path)


def test_other_programs_read_a_closed_file(tmp_path: Path) -> None:
    write(tmp_path)
    with pa.OSFile(f"{file_of(tmp_path, EXECUTIONS, 0)}") as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.num_rows == 17
    assert table["blocked_by"].to_pylist()[:2] == [None, None]
    assert table["cluster"].to_pylist()[:3] == [0, 0, 1]
