"""Small traces with every field in use, and Parquet files that break one rule."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metropolis.maps.map import GridMap
from metropolis.trace.call_columns import CALL_TYPE
from metropolis.trace.dependency_columns import DEPENDS_ON
from metropolis.trace.parquet import METADATA_KEY, SCHEMA
from metropolis.trace.schema import Calls, Trace
from metropolis.types import MetropolisError
from tests.small_traces import small_trace

META: dict[str, Any] = {
    "format": "metropolis-trace",
    "version": 2,
    "agents": ["Ada", "Bo"],
    "perception_radius": 4,
    "max_velocity": 1,
}


def call(**fields: Any) -> dict[str, Any]:
    return {"function": "plan", "prompt_tokens": 9, "output_tokens": 3} | fields


def rows() -> list[dict[str, Any]]:
    """Two agents, three steps; Ada makes three calls in step 1 (row 2)."""
    found = [
        {"step": step, "agent": agent, "x": 3.0 + step, "y": 5.0 + 4 * agent, "calls": []}
        for step in range(3)
        for agent in range(2)
    ]
    found[2]["calls"] = [call(), call(), call(parents=[0, 1])]
    return found


def write_rows(
    path: Path, content: list[dict[str, Any]], meta: Any = META, schema: pa.Schema = SCHEMA
) -> Path:
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    if schema is SCHEMA:
        call_type = pa.struct([field.with_nullable(True) for field in CALL_TYPE])
        nullable = nullable.set(4, pa.field("calls", pa.list_(call_type))).append(DEPENDS_ON)
    metadata = {} if meta is None else {METADATA_KEY: json.dumps(meta)}
    table = pa.Table.from_pylist(content, nullable.with_metadata(metadata))
    pq.write_table(table, path)
    return path


def open_map(width: int, height: int) -> GridMap:
    """A map with two arenas, and walls along its southern edge."""
    walls = np.zeros((height, width), bool)
    walls[-1] = True
    arenas = np.zeros((height, width), np.int32)
    arenas[:, width // 2 :] = 1
    return GridMap("plain", walls, arenas, ("", "east: yard"), arenas * 0, ("", "tree"))


def rich_trace(seed: int, agents: int, steps: int, *, mapped: bool) -> Trace:
    """A random trace with DAGs, plain chains, prefixes, texts, two models and perhaps a map."""
    trace = small_trace(seed, agents=agents, steps=steps, edge=8, radius=3, talk=0.2)
    draw = np.random.default_rng(seed)
    n = len(trace.calls)
    some = draw.random(n) < 0.5
    calls = replace(
        trace.calls,
        model=draw.integers(0, 2, n).astype(np.int32),
        models=("small", "größer"),
        prefix_id=np.where(some, draw.integers(0, 1 << 40, n), -1),
        prefix_tokens=np.where(some, trace.calls.prompt_tokens // 2, 0).astype(np.int32),
        prompt=["ask ☃" if s else None for s in some] if some.any() else None,
    )
    if draw.random() < 0.5:
        calls = chained(calls, trace)
    meta = replace(
        trace.meta,
        step_s=60.0,
        start=datetime(2024, 2, 29, 6, 30),
        source="tests",
        movement_origin="generated",
        calls_origin="derived",
        map=open_map(9, 9) if mapped else None,
    )
    known = trace.dependencies if seed % 2 else None
    return Trace(meta, trace.positions, calls, known)


def chained(calls: Calls, trace: Trace) -> Calls:
    key = calls.step.astype(np.int64) * trace.agents + calls.agent
    follows = np.append(False, key[1:] == key[:-1])[: len(key)]
    return replace(
        calls,
        parent_offsets=np.append(0, np.cumsum(follows)).astype(np.int64),
        parents=np.flatnonzero(follows).astype(np.int64) - 1,
    )


def assert_same(one: Trace, other: Trace) -> None:
    """Assert that all values are equal; names are compared, not the numbers that stand for them."""
    assert replace(one.meta, map=None) == replace(other.meta, map=None)
    assert (one.meta.map is None) == (other.meta.map is None)
    if one.meta.map is not None and other.meta.map is not None:
        for field, value in vars(one.meta.map).items():
            np.testing.assert_array_equal(value, getattr(other.meta.map, field))
    assert one.positions.dtype == other.positions.dtype == np.float32
    np.testing.assert_array_equal(one.positions, other.positions)
    a, b = one.calls, other.calls
    for field in (
        "step", "agent", "prompt_tokens", "output_tokens", "prefix_id", "prefix_tokens",
        "parent_offsets", "parents",
    ):  # fmt: skip
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)
        assert getattr(a, field).dtype == getattr(b, field).dtype, field
    assert [a.functions[i] for i in a.function] == [b.functions[i] for i in b.function]
    assert [a.models[i] for i in a.model] == [b.models[i] for i in b.model]
    for field in ("prompt", "completion"):
        texts = [getattr(calls, field) or [None] * len(calls) for calls in (a, b)]
        assert list(texts[0]) == list(texts[1]), field

    assert (one.dependencies is None) == (other.dependencies is None)
    if one.dependencies is not None and other.dependencies is not None:
        for field, column in vars(one.dependencies).items():
            np.testing.assert_array_equal(column, getattr(other.dependencies, field))
            assert column.dtype == getattr(other.dependencies, field).dtype, field


def assert_sentence(error: MetropolisError, path: Path, expected: list[str]) -> None:
    """One line of bearable length that begins with the file and holds what is expected."""
    message = str(error)
    assert message.startswith(str(path)), message
    assert "\n" not in message
    assert len(message) - len(str(path)) < 500, message
    for part in expected:
        assert part in message, message
