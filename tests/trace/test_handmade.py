"""Traces made by hand, with the types that pyarrow infers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError

CALL = {"function": "f", "prompt_tokens": 9, "output_tokens": 5}
LOOK = {"label": "x", "emoji": "", "place": "", "lines": []}
AGENTS, STEPS = 2, 2


def written(path: Path, calls: list[Any], **columns: list[Any]) -> Path:
    """A trace with these calls in its first rows."""
    rows = AGENTS * STEPS
    table = pa.table(
        {
            "step": [row // AGENTS for row in range(rows)],
            "agent": [row % AGENTS for row in range(rows)],
            "x": [0.0] * rows,
            "y": [0.0] * rows,
            "calls": calls + [None] * (rows - len(calls)),
        }
        | columns
    )
    meta = {
        "format": "metropolis-trace",
        "version": 2,
        "agents": ["Ada", "Bo"],
        "perception_radius": 4,
        "max_velocity": 1,
    }
    pq.write_table(table.replace_schema_metadata({"metropolis": json.dumps(meta)}), path)
    return path


@pytest.mark.parametrize(
    ("calls", "columns", "count"),
    [
        ([], {}, 0),
        ([[]], {}, 0),
        ([[CALL | {"parents": [], "other_parents": [], "model": None}]], {}, 1),
        ([[CALL]], {"depends_on": [None] * 4}, 1),
        ([[CALL]], {"depends_on": [[]] * 4}, 1),
        ([[CALL]], {"shows": [None] * 4}, 1),
        ([[CALL]], {"shows": [LOOK] * 4}, 1),
        ([[CALL]], {"shows": [{"label": "x"}, None, None, None]}, 1),
    ],
)
def test_nulls_and_empty_lists_need_no_type(
    tmp_path: Path, calls: list[Any], columns: dict[str, list[Any]], count: int
) -> None:
    trace = read_trace(written(tmp_path / "t.parquet", calls, **columns))
    assert len(trace.calls) == count
    assert (trace.dependencies is not None) == ("depends_on" in columns)
    shown = [row for row in columns.get("shows", []) if row is not None]
    assert [change.look.label for change in trace.shown or ()] == ["x"] * len(shown)


@pytest.mark.parametrize(
    ("calls", "columns", "sentence"),
    [
        ([[None]], {}, "row 0 .*, call 0: calls is null; it should be a struct"),
        ([[CALL | {"function": None}]], {}, "call 0: function is null; it should be given"),
        ([[CALL | {"parents": [None]}]], {}, "parents is a list with a null"),
        ([[CALL | {"zone": 3, "parent": [0]}]], {}, "calls: has the unknown field 'parent'; if"),
        ([[CALL]], {"depends_on": [[None], [], [], []]}, "depends_on.agent is -1"),
        ([[CALL]], {"shows": [{"lable": "x"}] * 4}, "column shows: is struct<lable: string>; it"),
        ([[CALL | {"prefix_id": -1}]], {}, "call 0: prefix_id is -1; it should be at least 0, or"),
        ([[CALL]], {"depend_on": [None] * 4}, "columns: has the unknown field 'depend_on'; if it"),
    ],
)
def test_invalid_values_and_misspelt_names_are_refused(
    tmp_path: Path, calls: list[Any], columns: dict[str, list[Any]], sentence: str
) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        read_trace(written(tmp_path / "t.parquet", calls, **columns))


def test_places_that_no_metric_accepts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match=r"row 0 .* x, y = \(1e\+30, 0\) is too far away"):
        read_trace(written(tmp_path / "t.parquet", [], x=[1e30] * 4))


def test_a_misspelt_key_of_the_metadata_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", [])
    table = pq.read_table(path)
    meta = json.loads(table.schema.metadata[b"metropolis"]) | {"join_radius": 2, "author": "Bo"}
    pq.write_table(table.replace_schema_metadata({"metropolis": json.dumps(meta)}), path)
    with pytest.raises(MetropolisError, match=r"metadata: has the unknown field 'join_radius'; if"):
        read_trace(path)


@pytest.mark.parametrize(
    "path", ["s3://bucket/a.parquet", "https://host/a.parquet", __file__ + "/a"]
)
def test_a_path_is_never_an_address(path: str) -> None:
    with pytest.raises(MetropolisError, match="does not exist; it should be a trace"):
        read_trace(path)
