"""Chunks of executions and calls equal the timeline, whole or while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.timeline.columns import NONE, Calls, Executions, Timeline
from metropolis.timeline.format import CALLS, EXECUTIONS, Meta, file_of
from metropolis.timeline.reader import read_timeline
from metropolis.timeline.writer import BatchFile, write_timeline
from metropolis.types import MetropolisError
from metropolis.viewer.data import chunks, timeline_columns
from metropolis.viewer.data.chunks import NoChunkError
from metropolis.viewer.data.timeline_columns import (
    CALL_COLUMNS,
    EXECUTION_COLUMNS,
    FAILED,
    WASTED,
    TimelineColumns,
)

AGENTS = 3
FUNCTIONS, MODELS = ("plan", "act", "say"), ("m", "")
times = st.integers(0, 40).map(float)
maybe_times = times | st.just(float("nan"))


def column(kind: type, name: str) -> type[np.generic]:
    annotation = f"{kind.__annotations__[name]}"
    return next(of for of in (np.float64, np.int32, np.bool_) if annotation in _named(of))


def _named(of: type[np.generic]) -> tuple[str, ...]:
    return {np.float64: ("Float64",), np.int32: ("Int32",), np.bool_: ("Bool",)}[of]


@st.composite
def timelines(draw: st.DrawFn, number: int, first_step: int | None = None) -> Timeline:
    least = first_step or 0
    keys = st.tuples(st.integers(least, 7), st.integers(0, AGENTS - 1))
    executions = [
        (*key, draw(times), draw(maybe_times), np.nan, np.nan, draw(st.integers(NONE, 2)), 0, 0)
        for key in sorted(draw(st.lists(keys, max_size=12, unique=True)))
    ]
    numbered = st.tuples(keys, st.integers(-2, 2))
    calls = [
        (
            *key,
            at,
            draw(st.integers(0, 2)),
            draw(st.integers(0, 1)),
            draw(st.integers(NONE, 1)),
            draw(times),
            draw(maybe_times),
            draw(maybe_times),
            draw(st.integers(0, 9)),
            draw(st.integers(0, 9)),
            draw(st.booleans()),
            draw(st.booleans()),
        )
        for key, at in sorted(draw(st.lists(numbered, max_size=12, unique=True)))
    ]
    meta = Meta(clock="simulated", run="r", agents=AGENTS, number=number, first_step=first_step)
    return Timeline(
        meta,
        Executions(*_columns(Executions, executions)),
        Calls(*_columns(Calls, calls), FUNCTIONS, MODELS),
    )


def _columns(kind: type, rows: Sequence[Sequence[object]]) -> list[np.ndarray]:  # type: ignore[type-arg]
    names = [field.name for field in fields(kind) if field.name not in ("functions", "models")]
    return [
        np.array([row[at] for row in rows], column(kind, name)) for at, name in enumerate(names)
    ]


def check(found: TimelineColumns, expected: Timeline) -> None:
    rows = found._chunk_rows
    steps = expected.steps
    count = -(-steps * AGENTS // rows)
    assert found.counts["executions"] == count
    parts = []
    for number in range(count):
        content = found.executions(number)
        size = min(rows, steps * AGENTS - number * rows)
        assert len(content) == 16 * size
        parts.append(
            [
                np.frombuffer(content, kind, size, 4 * size * at)
                for at, (_, kind, _) in enumerate(EXECUTION_COLUMNS)
            ]
        )
    names = ("dispatched_s", "committed_s", "blocked_by", "cluster")
    for at, name in enumerate(names if count else ()):
        whole = np.concatenate([part[at] for part in parts]).reshape(-1, AGENTS)
        dense = expected.dense(name)
        if at < 2:  # before the first step, all is committed
            first = int(expected.executions.step.min())
            known = whole[:first]
            assert (known == known[0, 0]).all() if first else True
            filled = without_holes(expected.dense("committed_s")[first:])
            dense = dense[first:]
            lost = np.isnan(expected.dense("committed_s")[first:]) & np.isnan(dense)
            dense[lost] = filled[lost]
            whole, dense = whole[first:], dense.astype(np.float32)
        assert np.array_equal(whole, dense, equal_nan=dense.dtype.kind == "f")
    check_calls(found, expected)


def without_holes(committed: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """What is missing is due to a kill if the agent has committed a later step."""
    filled = committed.copy()
    for step, agent in np.argwhere(np.isnan(committed)):
        later = committed[step + 1 :, agent]
        later = later[~np.isnan(later)]
        filled[step, agent] = later.min() if len(later) else np.nan
    return filled


def check_calls(found: TimelineColumns, expected: Timeline) -> None:
    calls = expected.calls
    shown = {}
    bounds = np.frombuffer(found.bounds(), np.float32).reshape(-1, 2)
    assert len(bounds) == found.counts["calls"]
    for number, (begin, end) in enumerate(bounds):
        content = found.calls_chunk(number)
        size = int(np.frombuffer(content, np.int32, 1)[0])
        assert len(content) == 4 + 4 * len(CALL_COLUMNS) * size
        of = {
            name: np.frombuffer(content, kind, size, 4 + 4 * size * at)
            for at, (name, kind) in enumerate(CALL_COLUMNS)
        }
        assert (np.diff(of["sent"]) >= 0).all()
        assert of["sent"].min() == begin
        times = np.concatenate([of["sent"], of["started"], of["completed"]])
        assert end == np.nanmax(times)
        for row in range(size):
            index = int(of["index"][row])
            assert index // timeline_columns.CHUNK_ROWS == number
            shown[found.call(index)] = [
                found.functions[of["function"][row]],
                found.models[of["model"][row]],
                *(float(of[name][row]) for name, _ in CALL_COLUMNS[5:]),
            ]
    wanted = {}
    for row in range(len(calls)):
        key = int(calls.step[row]), int(calls.agent[row]), int(calls.number[row])
        names = ("instance", "sent_s", "started_s", "completed_s", "prompt_tokens", "output_tokens")
        wanted[key] = [
            calls.functions[calls.function[row]],
            calls.models[calls.model[row]],
            *(float(getattr(calls, name)[row]) for name in names),
            float(FAILED * calls.failed[row] + WASTED * calls.wasted[row]),
        ]
    assert shown.keys() == wanted.keys()
    for key, values in wanted.items():
        assert shown[key][:2] == values[:2]
        assert np.array_equal(shown[key][2:], values[2:], equal_nan=True)
    assert found.calls == len(calls)


@settings(max_examples=25)
@given(timelines(0), timelines(1), timelines(2, 2), st.integers(1, 12), st.integers(2, 6))
def test_chunks_equal_the_timeline_while_it_grows(
    tmp_path_factory: pytest.TempPathFactory,
    first: Timeline,
    second: Timeline,
    third: Timeline,
    rows: int,
    calls: int,
) -> None:
    folder = tmp_path_factory.mktemp("timeline")
    with (
        patch.object(chunks, "CHUNK_ROWS", rows),
        patch.object(timeline_columns, "CHUNK_ROWS", calls),
    ):
        found = TimelineColumns(folder, AGENTS)
        assert found.refresh() == {}
        assert not found.is_there
        for part in (first, second, third):
            write_timeline(folder, part)
            before = [found.executions(at) for at in range(found.counts["executions"])]
            changed = found.refresh()
            check(found, read_timeline(folder))
            after = [found.executions(at) for at in range(found.counts["executions"])]
            for at, content in enumerate(after):
                if at not in changed.get("executions", ()):
                    assert before[at] == content
        assert found.refresh() == {}
        whole = TimelineColumns(folder, AGENTS)
        whole.refresh()
        check(whole, read_timeline(folder))
        for number in (-1, found.counts["executions"]):
            with pytest.raises(NoChunkError):
                found.executions(number)
        with pytest.raises(NoChunkError):
            found.call(found.calls)


@settings(max_examples=25)
@given(timelines(0), timelines(0), timelines(0), st.integers(2, 6))
def test_later_rows_of_a_process_replace_earlier_ones(
    tmp_path_factory: pytest.TempPathFactory,
    first: Timeline,
    second: Timeline,
    third: Timeline,
    calls: int,
) -> None:
    """The files grow as they do while a run is watched: all rows are in the same files."""
    folder = tmp_path_factory.mktemp("timeline")
    files = {
        kind: BatchFile(file_of(folder, kind, 0), kind, first.meta) for kind in (EXECUTIONS, CALLS)
    }
    with patch.object(timeline_columns, "CHUNK_ROWS", calls):
        found = TimelineColumns(folder, AGENTS)
        for part in (first, second, third):
            for kind, columns in ((EXECUTIONS, part.executions), (CALLS, part.calls)):
                if len(columns):
                    files[kind].write(_written(columns, part))
            found.refresh()
            if found.is_there:
                check_calls(found, read_timeline(folder))
                assert found.steps == read_timeline(folder).steps


def _written(columns: Executions | Calls, timeline: Timeline) -> list[list[object]]:
    """The columns as they are in a file, with None for what is missing."""
    written = []
    for field in fields(columns):
        values = getattr(columns, field.name)
        if field.name in ("functions", "models"):
            continue
        if field.name in ("function", "model"):
            names = getattr(timeline.calls, f"{field.name}s")
            written.append([names[value] for value in values])
        else:
            optional = field.name in ("instance", "blocked_by")
            written.append(
                [
                    None if value != value or (optional and value == NONE) else value
                    for value in values.tolist()
                ]
            )
    return written


def test_ends_are_the_last_steps_of_chunks(tmp_path: Path) -> None:
    rows = [(step, agent, 0.0, 10.0 * step + agent, 0.0, 0.0, -1, 0, 0)
            for step in range(5) for agent in range(2)]  # fmt: skip
    meta = Meta(clock="real", run="r", agents=2, number=0)
    none = Calls(*_columns(Calls, []), FUNCTIONS, MODELS)
    write_timeline(tmp_path, Timeline(meta, Executions(*_columns(Executions, rows)), none))
    with patch.object(chunks, "CHUNK_ROWS", 4):
        found = TimelineColumns(tmp_path, 2)
    found.refresh()
    ends = np.frombuffer(found.ends(), np.float32).reshape(-1, 2)
    assert ends.tolist() == [[10, 11], [30, 31], [40, 41]]
    assert found.bounds() == b""
    assert not found.simulated


def test_a_run_that_continues_earlier_changes_all_chunks(tmp_path: Path) -> None:
    none = Calls(*_columns(Calls, []), FUNCTIONS, MODELS)

    def write(number: int, steps: range, first_step: int | None) -> None:
        rows = [(step, 0, 1.0 * step, step + 1.0, 0.0, 0.0, -1, 0, 0) for step in steps]
        meta = Meta(clock="real", run="r", agents=1, number=number, first_step=first_step)
        timeline = Timeline(meta, Executions(*_columns(Executions, rows)), none)
        write_timeline(tmp_path, timeline)

    with patch.object(chunks, "CHUNK_ROWS", 2):
        found = TimelineColumns(tmp_path, 1)
    write(0, range(6), None)
    assert found.refresh() == {"executions": {0, 1, 2}, "ends": {0}}
    write(1, range(5, 7), 2)
    assert found.refresh() == {"executions": {0, 1, 2, 3}, "ends": {0}}
    assert found.steps == 7


def test_rows_that_cannot_be_kept(tmp_path: Path) -> None:
    rows = [(2**30, 0, 0.0, 1.0, 0.0, 0.0, -1, 0, 0)]
    none = Calls(*_columns(Calls, []), FUNCTIONS, MODELS)
    meta = Meta(clock="real", run="r", agents=AGENTS, number=0)
    write_timeline(tmp_path, Timeline(meta, Executions(*_columns(Executions, rows)), none))
    with pytest.raises(MetropolisError, match="the viewer shows up to"):
        TimelineColumns(tmp_path, AGENTS).refresh()
    with pytest.raises(MetropolisError, match="is of 3 agents, and the folder of 5"):
        TimelineColumns(tmp_path, 5).refresh()
