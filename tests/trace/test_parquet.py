"""Traces on disk: what is written is read, and what is damaged is refused in one sentence."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metropolis.trace.metadata import meta_to_json
from metropolis.trace.parquet import SCHEMA, read_trace, write_trace
from metropolis.trace.schema import Trace, TraceMeta
from metropolis.types import MetropolisError
from tests.small_traces import graph_trace
from tests.trace.damage import (
    META,
    assert_same,
    assert_sentence,
    call,
    open_map,
    rich_trace,
    rows,
    write_rows,
)

rich_traces = st.builds(
    rich_trace,
    st.integers(0, 2**32 - 1),
    agents=st.integers(1, 5),
    steps=st.integers(1, 10),
    mapped=st.booleans(),
)


@given(trace=rich_traces)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("traces") / "a.parquet"
    write_trace(trace, path)
    assert_same(read_trace(path), trace)
    assert [file.name for file in path.parent.iterdir()] == ["a.parquet"]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_graphs_come_back(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("traces") / "a.parquet"
    trace = graph_trace(seed)
    write_trace(trace, path)
    again = read_trace(path)
    assert again.meta == trace.meta
    assert_same(again, trace)


GRAPH = META | {"metric": "hops", "graph": {"nodes": 12, "edges": [[3, 4], [5, 4]]}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"y": 1.0}, ["row 2", "(4, 1) is not a node", "0 to 11, and 0"]),
        ({"x": 3.5}, ["row 2", "(3.5, 0) is not a node"]),
        ({"x": 12.0}, ["row 2", "(12, 0) is not a node"]),
        ({"x": 5.0}, ["row 2", "jumps from (3, 0) to (5, 0)", "a hops distance of 2", "1"]),
        ({"x": 9.0}, ["row 2", "jumps from (3, 0) to (9, 0)", "a hops distance of inf"]),
    ],
)
def test_places_that_are_not_in_the_graph(
    change: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    content = [row | {"y": 0.0} for row in rows()]
    for row in content:
        row["x"] = row["x"] if row["agent"] == 0 else 7.0
    read_trace(write_rows(tmp_path / "sound.parquet", content, GRAPH))
    content[2].update(change)
    refused(write_rows(tmp_path / "damaged.parquet", content, GRAPH), expected)


def test_plain_rows_make_a_trace(tmp_path: Path) -> None:
    trace = read_trace(write_rows(tmp_path / "a.parquet", rows()))
    assert trace.positions.shape == (3, 2, 2)
    assert trace.positions[2, 1].tolist() == [5, 9]
    assert trace.calls.parent_offsets.tolist() == [0, 0, 1, 3]
    assert trace.calls.parents.tolist() == [0, 0, 1]
    assert trace.meta.step_s == 10


def test_the_documents_example_is_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Path(__file__).parents[2] / "docs" / "trace-format.md"
    example = re.search(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    trace = read_trace(tmp_path / "mine.parquet")
    assert trace.meta.agents == ("Ada", "Bo")
    assert trace.calls.step.tolist() == [0, 1, 1, 1, 1]
    assert trace.calls.parents.tolist() == [1, 2, 3]


def test_wider_types_and_absent_fields_are_accepted(tmp_path: Path) -> None:
    kind = pa.struct(
        [
            ("function", pa.dictionary(pa.int8(), pa.string())),
            ("prompt_tokens", pa.int64()),
            ("output_tokens", pa.uint16()),
        ]
    )
    calls = pa.array(
        [[{"function": "plan", "prompt_tokens": 9, "output_tokens": 1}] * 2, None], pa.list_(kind)
    )
    columns = {"step": [0, 0], "agent": [0, 1], "x": [1.5, 2.5], "y": [1, 2]}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    table = table.append_column("calls", calls).append_column("mine", pa.array(["a", "b"]))
    pq.write_table(table.replace_schema_metadata({"metropolis": json.dumps(META)}), tmp_path / "a")
    trace = read_trace(tmp_path / "a")
    assert trace.positions.tolist() == [[[1.5, 1], [2.5, 2]]]
    assert trace.calls.parents.tolist() == [0]
    assert trace.calls.prefix_id.tolist() == [-1, -1]


Rows = list[dict[str, Any]]


def of_row(row: int, **fields: Any) -> Callable[[Rows], None]:
    return lambda content: content[row].update(fields)


def calls_of_row_2(*calls: dict[str, Any] | None) -> Callable[[Rows], None]:
    return of_row(2, calls=list(calls))


ROWS_WRONG: dict[str, tuple[Callable[[Rows], object], list[str]]] = {
    "missing agent": (lambda r: r.pop(3), ["row 3", "'Bo' is missing at step 1"]),
    "missing agent at the end": (lambda r: r.pop(), ["row 5", "'Bo' is missing at step 2"]),
    "duplicate row": (lambda r: r.insert(3, r[2]), ["row 3", "'Ada'", "again after row 2"]),
    "step gap": (lambda r: (r.pop(2), r.pop(2)), ["row 2", "step 1 is missing"]),
    "step gap at the start": (lambda r: (r.pop(0), r.pop(0)), ["row 0", "step 0 is missing"]),
    "not sorted": (lambda r: r.reverse(), ["row 0", "is in row 5", "sorted"]),
    "no rows": (lambda r: r.clear(), ["0 rows for 2 agents"]),
    "unknown agent": (of_row(3, agent=2), ["row 3", "agent is 2", "0 to 1"]),
    "negative step": (of_row(1, step=-1), ["row 1", "step is -1"]),
    "null step": (of_row(1, step=None), ["row 1", "step is null"]),
    "null x": (of_row(4, x=None), ["row 4", "x is null"]),
    "NaN": (of_row(3, y=float("nan")), ["row 3", "step 1", "'Bo'", "y is nan", "finite"]),
    "infinite": (of_row(3, x=float("-inf")), ["row 3", "x is -inf"]),
    "jump": (of_row(3, x=8.0), ["row 3", "'Bo'", "x, y", "distance of 5", "max_velocity = 1"]),
    "wall": (of_row(3, y=10.0), ["row 3", "x, y = (4, 10)", "wall"]),
    "outside the map": (of_row(5, x=-1.0), ["row 5", "x, y = (-1, 9)", "outside", "x should be 0"]),
    "far outside the map": (of_row(5, x=1e30), ["row 5", "outside"]),
    "no prompt": (
        calls_of_row_2(call(), call(prompt_tokens=0)),
        ["row 2", "call 1", "prompt_tokens is 0", "at least 1"],
    ),
    "no output": (calls_of_row_2(call(output_tokens=0)), ["row 2", "call 0", "output_tokens is 0"]),
    "negative output": (calls_of_row_2(call(output_tokens=-4)), ["output_tokens is -4"]),
    "null output": (calls_of_row_2(call(output_tokens=None)), ["row 2", "output_tokens is null"]),
    "null function": (calls_of_row_2(call(function=None)), ["row 2", "function is null"]),
    "null call": (calls_of_row_2(call(), None), ["row 2", "call 1", "calls is null"]),
    "long prefix": (
        calls_of_row_2(call(prefix_tokens=10)),
        ["row 2", "call 0", "prefix_tokens is 10", "0 to 9"],
    ),
    "negative prefix": (calls_of_row_2(call(prefix_tokens=-1)), ["row 2", "prefix_tokens is -1"]),
    "own parent": (
        calls_of_row_2(call(), call(parents=[1])),
        ["row 2", "call 1", "parents is 1", "the call itself", "before call 1"],
    ),
    "later parent, cyclic": (
        calls_of_row_2(call(parents=[1]), call(parents=[0])),
        ["row 2", "call 0", "parents is 1", "later call", "cycle"],
    ),
    "unknown parent": (
        calls_of_row_2(call(), call(parents=[0, 7])),
        ["row 2", "call 1", "parents is 7", "does not exist", "0 to 1"],
    ),
    "negative parent": (
        calls_of_row_2(call(), call(parents=[-1])),
        ["row 2", "call 1", "parents is -1", "does not exist"],
    ),
    "null parent": (
        calls_of_row_2(call(), call(parents=[None])),
        ["row 2", "call 1", "parents is a list with a null"],
    ),
}


@pytest.mark.parametrize("kind", ROWS_WRONG)
def test_rows_that_break_a_rule(kind: str, tmp_path: Path) -> None:
    damage, expected = ROWS_WRONG[kind]
    content = copy.deepcopy(rows())
    damage(content)
    told = meta_to_json(TraceMeta("", ("Ada", "Bo"), 4, 1, map=open_map(20, 11)))
    path = write_rows(tmp_path / "damaged.parquet", content, json.loads(told))
    refused(path, expected)


def test_geodesic_moves_go_round_walls(tmp_path: Path) -> None:
    """Ada crosses a wall with a gap next to it: 2 tiles as the crow flies, 4 on foot."""
    map = open_map(5, 5)
    map.walls[:2, 1] = True
    meta = TraceMeta("", ("Ada",), 4, 3, metric="geodesic", map=map)
    moves = [{"step": s, "agent": 0, "x": x, "y": y} for s, (x, y) in enumerate([(0, 1), (2, 1)])]
    path = write_rows(tmp_path / "a.parquet", moves, json.loads(meta_to_json(meta)))
    refused(path, ["row 1", "geodesic distance of 4", "max_velocity = 3"])
    meta = replace(meta, max_velocity=4)
    assert read_trace(write_rows(path, moves, json.loads(meta_to_json(meta)))).steps == 2
    map.walls[2:, 1] = True
    refused(write_rows(path, moves, json.loads(meta_to_json(meta))), ["row 1", "distance of inf"])


META_WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "format": ({"format": "other"}, ["format is 'other'", "metropolis-trace"]),
    "older version": ({"version": 1}, ["version is 1", "2", "recreate", "metropolis trace import"]),
    "newer version": ({"version": 3}, ["version is 3", "2"]),
    "no agents": ({"agents": []}, ["agents"]),
    "agents no list": ({"agents": "Ada"}, ["agents is 'Ada'"]),
    "agents twice": ({"agents": ["Ada", "Ada"]}, ["agents", "repetition"]),
    "radius": ({"perception_radius": -2}, ["perception_radius is -2", "at least 0"]),
    "radius no number": ({"perception_radius": "4"}, ["perception_radius is '4'"]),
    "radius NaN": ({"perception_radius": float("nan")}, ["perception_radius is nan"]),
    "joint radius": ({"joint_radius": 5}, ["joint_radius is 5.0", "0 to 4"]),
    "joint radius no number": ({"joint_radius": "far"}, ["joint_radius is 'far'"]),
    "joint radius negative": ({"joint_radius": -1}, ["joint_radius is -1.0"]),
    "velocity": ({"max_velocity": -1}, ["max_velocity is -1", "at least 0"]),
    "velocity infinite": ({"max_velocity": float("inf")}, ["max_velocity is inf"]),
    "velocity huge": ({"max_velocity": 10**400}, ["max_velocity is 1000"]),
    "step_s": ({"step_s": 0}, ["step_s is 0"]),
    "metric": ({"metric": "taxi"}, ["metric is 'taxi'", "chebyshev"]),
    "hops without graph": ({"metric": "hops"}, ["graph is None", "because the metric is hops"]),
    "graph without hops": (
        {"graph": {"nodes": 2, "edges": []}},
        ["metric is 'chebyshev'", "hops, because there is a graph"],
    ),
    "graph": ({"graph": 5}, ["graph should be an object or null"]),
    "graph's nodes": ({"graph": {"nodes": 0}}, ["graph.nodes is 0", "1 to 16777216"]),
    "graph's edges": ({"graph": {"nodes": 2}}, ["graph.edges is None", "a list of pairs"]),
    **{
        f"graph's edge {edge}": (
            {"graph": {"nodes": 3, "edges": [[0, 1], edge]}},
            ["graph.edges[1] is", "a pair of different nodes, each 0 to 2"],
        )
        for edge in ([1, 3], [1, 1], [1], [0, 1, 2], ["0", 1], [-1, 0], [0, True], 7, [[0], 1])
    },
    "geodesic without map": ({"metric": "geodesic"}, ["map", "geodesic"]),
    "start": ({"start": "yesterday"}, ["start is 'yesterday'", "2023-02-13T00:00:00"]),
    "origin": ({"calls_origin": "heard"}, ["calls_origin is 'heard'", "derived"]),
    "name": ({"name": 5}, ["name is 5", "a text"]),
    "map": ({"map": 5}, ["map", "object"]),
    "map's size": ({"map": {"name": "a", "width": 0, "height": 1}}, ["map.width"]),
    "map's walls": (
        {"map": {"name": "a", "width": 1, "height": 1, "walls": "AAAA"}},
        ["map.walls", "1 x 1", "base64"],
    ),
}


@pytest.mark.parametrize("kind", META_WRONG)
def test_metadata_that_breaks_a_rule(kind: str, tmp_path: Path) -> None:
    changes, expected = META_WRONG[kind]
    refused(write_rows(tmp_path / "damaged.parquet", rows(), META | changes), expected)


@pytest.mark.parametrize("field", ["agents", "perception_radius", "max_velocity"])
def test_metadata_that_lacks_a_field(field: str, tmp_path: Path) -> None:
    meta = {key: value for key, value in META.items() if key != field}
    refused(write_rows(tmp_path / "damaged.parquet", rows(), meta), [f"{field} is missing"])


@pytest.mark.parametrize("column", SCHEMA.names)
def test_columns_missing_or_of_another_type(column: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.parquet"
    table = pq.read_table(write_rows(path, rows()))
    pq.write_table(table.drop_columns(column), path)
    refused(path, [f"column {column} is missing"])
    index = table.schema.get_field_index(column)
    pq.write_table(table.set_column(index, column, pa.array([b"a"] * len(table))), path)
    refused(path, [f"column {column}: is binary"])


@pytest.mark.parametrize("field", ["function", "prompt_tokens", "output_tokens"])
def test_call_fields_missing_or_of_another_type(field: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.parquet"
    for content, expected in (
        ({key: value for key, value in call().items() if key != field}, "is missing"),
        (call(**{field: 1.5}), "is double"),
    ):
        kind = pa.list_(pa.infer_type([content]))
        schema = SCHEMA.set(4, pa.field("calls", kind))
        broken = [row | {"calls": [content]} for row in rows()]
        refused(write_rows(path, broken, schema=schema), [f"calls.{field}", expected])


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "damaged.parquet", rows())
    whole = path.read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, ["not an intact Parquet file"])
    path.write_text("step,agent,x,y\n")
    refused(path, ["not an intact Parquet file"])
    write_rows(path, rows(), None)
    refused(path, ["not a trace", "'metropolis'", "docs/trace-format.md"])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"metropolis": "{"}), path)
    refused(path, ["metadata", "not JSON"])
    refused(tmp_path / "nowhere.parquet", ["does not exist"])
    refused(tmp_path, ["is a folder"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", rows())
    trace = read_trace(path)
    path.chmod(0)
    refused(path, ["may not be read"])
    tmp_path.chmod(0o500)
    with pytest.raises(MetropolisError, match="cannot be written"):
        write_trace(trace, path)
    tmp_path.chmod(0o700)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    trace = rich_trace(1, 3, 4, mapped=False)
    path = tmp_path / "a.parquet"
    write_trace(trace, path)
    before = path.read_bytes()
    trace.positions[2, 1, 0] = np.nan
    with pytest.raises(MetropolisError, match=r"row 7 \(step 2, agent 'agent 1'\): x is nan"):
        write_trace(trace, path)
    assert path.read_bytes() == before
    trace.positions[2, 1, 0] = trace.positions[1, 1, 0]
    for target in (tmp_path / "no folder" / "a.parquet", tmp_path, path / "a", Path()):
        with pytest.raises(MetropolisError, match="cannot be written"):
            write_trace(rich_trace(1, 3, 4, mapped=False), target)
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    trace = rich_trace(1, 3, 4, mapped=False)
    pipe, link, real, loop = (tmp_path / name for name in ("pipe", "link", "real", "loop"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for target in (pipe, loop):
        with pytest.raises(MetropolisError, match=r"cannot be written .it is not a regular file"):
            write_trace(trace, target)
    assert pipe.is_fifo()
    link.symlink_to(real)
    real.write_text("old")
    real.chmod(0o640)
    write_trace(trace, link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert_same(read_trace(real), trace)


@given(
    seed=st.integers(0, 2**32 - 1),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=6),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
    checksums=st.booleans(),
)
@example(seed=0, flips=[(0.7395283706476418, 1)], kept=1.0, checksums=False)  # a long type
@settings(max_examples=400, deadline=None)
def test_flipped_and_cut_bytes_never_get_past_a_sentence(
    seed: int,
    flips: list[tuple[float, int]],
    kept: float,
    checksums: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.parquet"
    if checksums:
        write_trace(rich_trace(seed % 8, 3, 6, mapped=True), path)
    else:
        write_rows(path, rows())
    content = bytearray(path.read_bytes())
    for where, flip in flips:
        content[int(where * (len(content) - 1))] ^= flip
    path.write_bytes(content[: int(kept * len(content))])
    try:
        read_trace(path)
    except MetropolisError as error:
        assert_sentence(error, path, [])


def refused(path: Path, expected: list[str]) -> None:
    with pytest.raises(MetropolisError) as caught:
        read_trace(path)
    assert_sentence(caught.value, path, expected)
