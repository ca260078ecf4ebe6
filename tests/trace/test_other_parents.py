"""Calls that wait for those of other agents, on disk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from metropolis.trace.parquet import read_trace, write_trace
from metropolis.types import MetropolisError
from tests.trace.damage import assert_same, assert_sentence, call, rows, write_rows

Rows = list[dict[str, Any]]


def talking(ada: list[Any], bo: list[Any]) -> Callable[[Rows], None]:
    def change(content: Rows) -> None:
        content[2]["calls"], content[3]["calls"] = ada, bo

    return change


def ada(*calls: dict[str, Any]) -> Callable[[Rows], None]:
    return talking(list(calls), [])


def test_calls_may_wait_for_those_of_others_in_their_step(tmp_path: Path) -> None:
    """A talk: Ada's first and Bo's first, then Bo's second, Ada's second, Bo's third."""
    content = rows()
    other = [{"agent": 1, "call": 1}]
    talking(
        [call(), call(parents=[], other_parents=other)],
        [call(), call(other_parents=[{"agent": 0, "call": 0}]), call(other_parents=[])],
    )(content)
    trace = read_trace(write_rows(tmp_path / "a.parquet", content))
    first = trace.call_offsets()[2]
    offsets = trace.calls.parent_offsets[first:]
    found = [trace.calls.parents[a:b].tolist() for a, b in pairwise(offsets)]
    assert [[parent - first for parent in of] for of in found] == [[], [3], [], [0, 2], [3]]
    write_trace(trace, tmp_path / "b.parquet")
    assert_same(read_trace(tmp_path / "b.parquet"), trace)


WRONG: dict[str, tuple[Callable[[Rows], None], list[str]]] = {
    "null other parent": (
        ada(call(), call(other_parents=[None])),
        ["row 2", "call 1", "other_parents is incomplete"],
    ),
    "half an other parent": (
        ada(call(other_parents=[{"agent": 1, "call": None}])),
        ["row 2", "call 0", "other_parents is incomplete"],
    ),
    "unknown other agent": (
        ada(call(), call(other_parents=[{"agent": 2, "call": 0}])),
        ["row 2", "call 1", "other_parents is of agent 2", "0 to 1 but not 0"],
    ),
    "own agent": (
        ada(call(), call(other_parents=[{"agent": 0, "call": 0}])),
        ["row 2", "call 1", "other_parents is of agent 0", "0 to 1 but not 0"],
    ),
    "no such call of another": (
        ada(call(other_parents=[{"agent": 1, "call": 0}])),
        ["row 2", "call 0", "other_parents is call 0 of agent 1", "has no calls in this step"],
    ),
    "negative call of another": (
        talking([call(other_parents=[{"agent": 1, "call": -1}])], [call()]),
        ["row 2", "call 0", "other_parents is call -1 of agent 1", "0 to 0"],
    ),
    "cycle of two": (
        talking(
            [call(), call(other_parents=[{"agent": 1, "call": 0}])],
            [call(other_parents=[{"agent": 0, "call": 1}])],
        ),
        ["row 2", "call 1", "cycle", "call 1 of agent 0", "call 0 of agent 1"],
    ),
    "cycle through a chain": (
        talking(
            [call(other_parents=[{"agent": 1, "call": 1}]), call()],
            [call(other_parents=[{"agent": 0, "call": 1}]), call()],
        ),
        ["row 2", "call 0", "other_parents", "cycle", "call 1 of agent 1"],
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_waited_for_is_refused(kind: str, tmp_path: Path) -> None:
    damage, expected = WRONG[kind]
    content = rows()
    damage(content)
    path = write_rows(tmp_path / "damaged.parquet", content)
    with pytest.raises(MetropolisError) as refused:
        read_trace(path)
    assert_sentence(refused.value, path, expected)
