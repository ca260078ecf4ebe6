"""Conversion of dependencies by value to and from one nested Parquet column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metropolis.trace.schema import ValueDependencies
from metropolis.trace.validate import Place
from metropolis.types import MetropolisError

_DEPENDENCY = pa.struct([pa.field("agent", pa.int32()), pa.field("ago", pa.int32())])
DEPENDS_ON = pa.field("depends_on", pa.list_(_DEPENDENCY))
"""The column of a trace that knows dependencies by value."""


def dependency_lists(dependencies: ValueDependencies) -> pa.ListArray:
    """One list for each (step, agent); null if the agent-step depends on nothing."""
    columns = [pa.array(dependencies.writer), pa.array(dependencies.ago)]
    return pa.ListArray.from_arrays(
        dependencies.offsets.astype(np.int32),
        pa.StructArray.from_arrays(columns, fields=list(_DEPENDENCY)),
        mask=pa.array(np.diff(dependencies.offsets) == 0),
    )


def read_dependencies(lists: pa.Array, agents: int, place: Place) -> ValueDependencies:
    """The dependencies in `lists`, one list per (step, agent).

    Raises `MetropolisError` that names the row.
    """
    counts = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    row = np.repeat(np.arange(len(counts)), counts)
    values = lists.flatten()
    columns = []
    for name in ("agent", "ago"):
        column = pc.struct_field(values, name).cast(pa.int64(), safe=False).fill_null(-1)
        columns.append(np.asarray(column.to_numpy(zero_copy_only=False)))
    writer, ago = columns
    step, reader = row // agents, row % agents
    for name, value, wrong, right in (
        ("agent", writer, (writer < 0) | (writer >= agents) | (writer == reader), "another agent"),
        ("ago", ago, (ago < 1) | (ago > step), "from 1 to the step of its row"),
    ):
        if wrong.any():
            j = int(np.argmax(wrong))
            where = place(int(step[j]), int(reader[j]))
            raise MetropolisError(f"{where}: depends_on.{name} is {value[j]}; it should be {right}")
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ValueDependencies(offsets, writer.astype(np.int32), ago.astype(np.int32))
