"""Parts of a trace: what waited for calls that are left out waits for what these waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.trace.order import parents_first
from metropolis.trace.schema import Calls, Trace
from metropolis.trace.summary import summarise
from metropolis.trace.validate import validate
from metropolis.types import MetropolisError
from tests.small_traces import small_trace, small_traces


def ancestors(calls: Calls) -> list[set[int]]:
    """Return for each call the set of calls that it waits for, directly or not."""
    parents = [calls.parents[a:b].tolist() for a, b in pairwise(calls.parent_offsets)]
    found: list[set[int]] = [set() for _ in parents]
    for call in parents_first(calls).tolist():
        found[call] = set(parents[call]).union(*(found[parent] for parent in parents[call]))
    return found


@given(small_traces, st.integers(0, 2**32 - 1), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_kept_calls_wait_for_the_same_of_those_that_are_kept(
    trace: Trace, seed: int, share: float
) -> None:
    calls = trace.calls
    mask = np.random.default_rng(seed).random(len(calls)) < share
    kept = np.flatnonzero(mask).tolist()
    place = {call: i for i, call in enumerate(kept)}
    before, after = ancestors(calls), ancestors(calls.keep(mask))
    for call in kept:
        assert after[place[call]] == {place[other] for other in before[call] if mask[other]}
    validate(replace(trace, calls=calls.keep(mask)), "what is kept")


@given(small_traces, st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_the_first_agents_are_a_trace(trace: Trace, agents: int) -> None:
    part = trace.first_agents(min(agents, trace.agents))
    validate(part, "the first agents")
    window = trace.window(trace.steps // 2, trace.steps)
    validate(window, "the second half")
    calls = trace.calls
    child = np.repeat(np.arange(len(calls)), np.diff(calls.parent_offsets))
    late = calls.step >= trace.steps // 2
    assert len(window.calls.parents) == late[child].sum()


def test_hours_are_understood_as_refusals_print_them() -> None:
    with pytest.raises(MetropolisError, match=r"which covers 0-0\.0833333$"):
        TRACE.between_hours(0, 1)
    assert TRACE.between_hours(0, 0.0833333).steps == 30
    assert TRACE.window(0, 20).between_hours(0, 0.0555556).steps == 20
    assert TRACE.window(1, 30).between_hours(0.00277778, 0.0833333).steps == 29


TRACE = small_trace(3, agents=4, steps=30, edge=8, radius=2)


@pytest.mark.parametrize(
    ("cut", "sentence"),
    [
        (lambda: TRACE.window(-5, 10), "first is -5; it should be a whole number from 0 to 30"),
        (lambda: TRACE.window(0, 31), "last is 31; it should be a whole number from 0 to 30"),
        (lambda: TRACE.window(9, 8), "last is 8; it should be a whole number from 9 to 30"),
        (lambda: TRACE.first_agents(-1), "count is -1; it should be a whole number, at least 1"),
        (lambda: TRACE.first_agents(0), "count is 0; it should be a whole number, at least 1"),
        (
            lambda: TRACE.between_hours(-1, 0.01),
            "-1-0.01 is not within the trace, which covers 0-0.0833333",
        ),
        (
            lambda: TRACE.between_hours(0, 24),
            "0-24 is not within the trace, which covers 0-0.0833333",
        ),
        (
            lambda: summarise(TRACE.window(3, 3)),
            "the trace 'small 3' has 0 steps of 4 agents; at least one step of one agent is needed",
        ),
    ],
)
def test_parts_beyond_the_trace_are_refused(cut: Callable[[], object], sentence: str) -> None:
    with pytest.raises(MetropolisError) as error:
        cut()
    assert str(error.value) == sentence
