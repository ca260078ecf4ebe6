"""Conversion of the calls of a trace to and from one nested Parquet column."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from metropolis.trace.schema import Calls, Int64, Trace
from metropolis.trace.validate import Place
from metropolis.types import MetropolisError

_OTHER_PARENT = pa.struct([pa.field("agent", pa.int32()), pa.field("call", pa.int32())])
CALL_TYPE = pa.struct(
    [
        pa.field("function", pa.string(), nullable=False),
        pa.field("parents", pa.list_(pa.int32())),
        pa.field("model", pa.string()),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("output_tokens", pa.int32(), nullable=False),
        pa.field("prefix_id", pa.int64()),
        pa.field("prefix_tokens", pa.int32()),
        pa.field("prompt", pa.string()),
        pa.field("completion", pa.string()),
        pa.field("other_parents", pa.list_(_OTHER_PARENT)),
    ]
)
CALL_FIELDS_REQUIRED = ("function", "prompt_tokens", "output_tokens")
_INT32_MAX = 2**31 - 1
Refuse = Callable[[int, str, object, str], MetropolisError]
"""(call, field, value, expected value) -> the error."""
Pairs = tuple[Int64, Int64]
"""Two columns: calls and their parents."""


def call_structs(trace: Trace) -> pa.StructArray:
    """The calls as structs; parents are numbers within their row, null for a chain."""
    calls = trace.calls
    n = len(calls)
    key = calls.step.astype(np.int64) * trace.agents + calls.agent
    index = np.arange(n)
    first = np.searchsorted(key, key)
    child = np.repeat(index, np.diff(calls.parent_offsets))
    is_own = key[calls.parents] == key[child]
    counts = np.bincount(child[is_own], minlength=n)
    follows = np.bincount(child[calls.parents == child - 1], minlength=n) > 0
    chained = np.where(index == first, counts == 0, (counts == 1) & follows)
    number = (calls.parents - first[calls.parents]).astype(np.int32)
    parents = pa.ListArray.from_arrays(
        np.append(0, np.cumsum(np.where(chained, 0, counts))).astype(np.int32),
        pa.array(number[is_own & ~chained[child]]),
        mask=pa.array(chained),
    )
    others = np.bincount(child[~is_own], minlength=n)
    other_agents = calls.agent[calls.parents[~is_own]].astype(np.int32)
    other_parents = pa.ListArray.from_arrays(
        np.append(0, np.cumsum(others)).astype(np.int32),
        pa.StructArray.from_arrays(
            [pa.array(other_agents), pa.array(number[~is_own])], fields=list(_OTHER_PARENT)
        ),
        mask=pa.array(others == 0),
    )

    def named(index: npt.NDArray[np.int32], names: tuple[str, ...]) -> pa.Array:
        return pa.array(names, pa.string()).take(pa.array(index))

    columns = {
        "function": named(calls.function, calls.functions),
        "parents": parents,
        "model": named(calls.model, calls.models),
        "prompt_tokens": pa.array(calls.prompt_tokens.astype(np.int32)),
        "output_tokens": pa.array(calls.output_tokens.astype(np.int32)),
        "prefix_id": pa.array(calls.prefix_id, mask=calls.prefix_id < 0),
        "prefix_tokens": pa.array(calls.prefix_tokens.astype(np.int32)),
    }
    for name in ("prompt", "completion"):
        texts = getattr(calls, name)
        columns[name] = pa.nulls(n, pa.string()) if texts is None else pa.array(texts, pa.string())
    columns["other_parents"] = other_parents
    return pa.StructArray.from_arrays(list(columns.values()), fields=list(CALL_TYPE))


def read_calls(lists: pa.ListArray, agents: int, place: Place) -> Calls:
    """The calls in `lists`, one list per (step, agent). Raises `MetropolisError` naming the row."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    row = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    seq = np.arange(len(row)) - first

    def refuse(i: int, field: str, value: object, right: str) -> MetropolisError:
        where = place(*divmod(int(row[i]), agents))
        return MetropolisError(f"{where}, call {seq[i]}: {field} is {value}; it should be {right}")

    fields = _Fields(lists.flatten(), refuse)
    function, functions = fields.names("function")
    model, models = fields.names("model")
    child, parents = _parents(fields.column("parents"), first, seq, refuse)
    others = _other_parents(fields.column("other_parents"), agents, counts, row, refuse)
    if len(others[0]):
        child, parents = np.append(child, others[0]), np.append(parents, others[1])
        order = np.lexsort((parents, child))
        child, parents = child[order], parents[order]
    parent_counts = np.bincount(child, minlength=len(row))
    return Calls(
        step=(row // agents).astype(np.int32),
        agent=(row % agents).astype(np.int32),
        function=function,
        functions=functions,
        model=model,
        models=models,
        prompt_tokens=fields.integers("prompt_tokens", 0).astype(np.int32),
        output_tokens=fields.integers("output_tokens", 0).astype(np.int32),
        prefix_id=fields.prefix_ids(),
        prefix_tokens=fields.integers("prefix_tokens", 0).astype(np.int32),
        parent_offsets=np.append(0, np.cumsum(parent_counts)).astype(np.int64),
        parents=parents,
        prompt=fields.texts("prompt"),
        completion=fields.texts("completion"),
    )


class _Fields:
    """The fields of calls as columns."""

    def __init__(self, structs: pa.StructArray, refuse: Refuse) -> None:
        """Raises the error of `refuse` for a call that is null, as the methods for a field."""
        self._structs, self._refuse = structs, refuse
        if structs.null_count:
            raise refuse(_first_null(structs), "calls", "null", "a struct")

    def column(self, name: str, kind: pa.DataType | None = None) -> pa.Array | None:
        """One field, as `kind`, with nulls unless it is required; None if it is absent."""
        if self._structs.type.get_field_index(name) < 0:
            return None
        values = pc.struct_field(self._structs, name)
        if kind is not None:
            values = values.cast(kind)
        if name in CALL_FIELDS_REQUIRED and values.null_count:
            raise self._refuse(_first_null(values), name, "null", "given")
        return values

    def integers(self, name: str, default: int, limit: int = _INT32_MAX) -> Int64:
        """One field; `default` where it is null or absent."""
        values = self.column(name, pa.int64())
        if values is None:
            return np.full(len(self._structs), default, np.int64)
        numbers = np.asarray(values.fill_null(default).to_numpy(zero_copy_only=False))
        if (bad := (numbers > limit) | (numbers < -limit)).any():
            i = int(np.argmax(bad))
            raise self._refuse(i, name, numbers[i], f"at most {limit}")
        return numbers

    def prefix_ids(self) -> Int64:
        """The field `prefix_id`; -1 where it is null or absent."""
        given = self.column("prefix_id", pa.int64())
        least = None if given is None else pc.min(given).as_py()
        if least is not None and least < 0:
            i = pc.index(given, least).as_py()
            raise self._refuse(i, "prefix_id", least, "at least 0, or null: unknown")
        return self.integers("prefix_id", -1, 2**63 - 1)

    def names(self, name: str) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
        """Indices into the different names, and these; a missing name is empty."""
        found = self.column(name, pa.large_string())
        if found is None:
            found = pa.repeat(pa.scalar("", pa.large_string()), len(self._structs))
        coded = found.fill_null("").dictionary_encode()
        return (
            coded.indices.to_numpy(zero_copy_only=False).astype(np.int32),
            tuple(coded.dictionary.to_pylist()),
        )

    def texts(self, name: str) -> list[str | None] | None:
        """One field; None if it is null in all calls, or absent."""
        found = self.column(name, pa.large_string())
        return None if found is None or found.null_count == len(found) else found.to_pylist()


def _first_null(values: pa.Array) -> int:
    return int(np.argmax(values.is_null().to_numpy(False)))


def _parents(lists: pa.Array | None, first: Int64, seq: Int64, refuse: Refuse) -> Pairs:
    """Calls and their parents in the same row; without a list, the previous call is the parent."""
    n = len(seq)
    lists = _lists(lists, n, pa.int32())
    chained = np.asarray(lists.is_null().to_numpy(False))
    given = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    child = np.repeat(np.arange(n), np.where(chained, seq > 0, given))
    values = lists.flatten()
    if values.null_count:
        owner = int(np.repeat(np.arange(n), given)[_first_null(values)])
        raise refuse(owner, "parents", "a list with a null", "a list of call numbers")
    parents = child - 1
    own = ~chained[child]
    parents[own] = values.to_numpy(zero_copy_only=False).astype(np.int64) + first[child[own]]
    return child, parents.astype(np.int64)


def _other_parents(
    lists: pa.Array | None, agents: int, counts: Int64, row: Int64, refuse: Refuse
) -> Pairs:
    """Calls and their parents in other rows of the same step."""
    lists = _lists(lists, len(row), _OTHER_PARENT)
    given = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    child = np.repeat(np.arange(len(row)), given)
    values = lists.flatten()
    columns = []
    for name in ("agent", "call"):
        column = pc.struct_field(values, name)
        if values.null_count or column.null_count:
            missing = (values.is_null().to_numpy(False)) | column.is_null().to_numpy(False)
            right = "a list of agents and call numbers"
            raise refuse(int(child[np.argmax(missing)]), "other_parents", "incomplete", right)
        columns.append(np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False)))
    agent, number = columns
    own = row[child] % agents
    if (bad := (agent < 0) | (agent >= agents) | (agent == own)).any():
        j = int(np.argmax(bad))
        right = f"of another agent, 0 to {agents - 1} but not {own[j]}"
        raise refuse(int(child[j]), "other_parents", f"of agent {agent[j]}", right)
    other = row[child] - own + agent
    if (bad := (number < 0) | (number >= counts[other])).any():
        j = int(np.argmax(bad))
        there = int(counts[other[j]])
        right = f"0 to {there - 1}" if there else "empty: that agent has no calls in this step"
        value = f"call {number[j]} of agent {agent[j]}"
        raise refuse(int(child[j]), "other_parents", value, right)
    return child, (np.cumsum(counts) - counts)[other] + number


def _lists(lists: pa.Array | None, n: int, kind: pa.DataType) -> pa.Array:
    """The column, or a column of nulls if it is absent."""
    if lists is None:
        return pa.nulls(n, pa.list_(kind))
    return lists
