"""Requests with parents, and simulations that end early, against the reference."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import Profile, Request, simulate
from metropolis.sim.reference import ReferencePool

PROFILE = Profile(
    w_ms=3.0, g_ms=0.05, h_ms=1.0, b_ms=0.01, k_ms=0.001, kv_capacity_tokens=64,
    block_tokens=4, max_sequences=4, chunk_tokens=32,
)  # fmt: skip
ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.013]), st.integers(1, 30), st.integers(1, 20)),
    min_size=1,
    max_size=12,
)


def columns(rows: list[tuple[float, int, int]], data: st.DataObject) -> dict[str, np.ndarray]:
    parents = [data.draw(st.integers(-1, max(-1, row - 1))) for row in range(len(rows))]
    gaps, prompts, outputs = zip(*rows, strict=True)
    return {
        "arrival_sim_s": np.cumsum(gaps),
        "prompt_tokens": np.array(prompts),
        "output_tokens": np.array(outputs),
        "parent": np.array(parents),
    }


def by_reference(
    given: dict[str, np.ndarray], instances: int, until_sim_s: float
) -> dict[str, np.ndarray]:
    """The specification: step from event to event."""
    count = len(given["parent"])
    pool = ReferencePool(PROFILE, instances)
    found = {
        "first_token_sim_s": np.full(count, inf),
        "last_token_sim_s": np.full(count, inf),
        "submitted_sim_s": np.full(count, inf),
        "generated_tokens": np.zeros(count, dtype=int),
    }
    waiting = {row: given["arrival_sim_s"][row] for row in np.flatnonzero(given["parent"] < 0)}
    while waiting or pool.outstanding():
        row = min(waiting, key=lambda each: (waiting[each], each), default=-1)
        ready = waiting.get(row, inf)
        now = min(ready, pool.next_event_sim_s())
        if now > until_sim_s:
            break
        for each in pool.advance(now):
            found["first_token_sim_s"][each.id] = each.first_token_sim_s
            found["last_token_sim_s"][each.id] = each.last_token_sim_s
            found["generated_tokens"][each.id] = each.output_tokens
            for child in np.flatnonzero(given["parent"] == each.id):
                arrival = given["arrival_sim_s"][child]
                waiting[int(child)] = max(arrival, each.last_token_sim_s)
        row = min(waiting, key=lambda each: (waiting[each], each), default=-1)
        if row >= 0 and waiting[row] <= now:
            request = Request(int(given["prompt_tokens"][row]), int(given["output_tokens"][row]))
            pool.submit(row, request, now)
            found["submitted_sim_s"][row] = now
            del waiting[row]
    if until_sim_s < inf:
        pool.advance(until_sim_s)
        running = {
            id: tokens
            for instance in range(instances)
            for id, tokens in pool.progress(instance).items()
        }
        left = (found["submitted_sim_s"] < inf) & (found["last_token_sim_s"] == inf)
        for id in np.flatnonzero(left).tolist():
            if id not in running:
                pool.abort(id, until_sim_s)
        for each in pool.advance(until_sim_s):  # those that wait left with their tokens
            running[each.id] = each.output_tokens
        for id, tokens in running.items():
            found["generated_tokens"][id] = tokens
    return found


@given(ROWS, st.integers(1, 3), st.floats(0, 0.4) | st.just(inf), st.data())
@settings(max_examples=200, deadline=None)
def test_parents_and_an_early_end(
    rows: list[tuple[float, int, int]], instances: int, until_sim_s: float, data: st.DataObject
) -> None:
    given_columns = columns(rows, data)
    result = simulate(PROFILE, **given_columns, instances=instances, until_sim_s=until_sim_s)
    expected = by_reference(given_columns, instances, until_sim_s)
    for name, column in expected.items():
        assert result[name].tolist() == column.tolist(), name  # type: ignore[literal-required]
    assert ((result["instance"] < 0) == (result["last_token_sim_s"] == inf)).all()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(5, 20)), min_size=2, max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_request_loses_no_tokens(rows: list[tuple[int, int]]) -> None:
    """Neither a request that runs nor one that waits after a preemption loses tokens."""
    before = np.zeros(len(rows), dtype=int)
    for until_sim_s in np.arange(0.0, 0.25, 0.004).tolist():
        arrival_sim_s = np.zeros(len(rows))
        result = simulate(PROFILE, arrival_sim_s, *zip(*rows, strict=True), until_sim_s=until_sim_s)
        now = result["generated_tokens"]
        assert (before <= now).all()
        before = now


def test_bad_columns_are_refused() -> None:
    two = [0.0, 0.0], [1, 1], [1, 1]
    for parent, message in (
        ([0, -1], "parent of row 0 is 0; it must be an earlier row, or -1"),
        ([-1, -2], "parent of row 1 is -2"),
        ([-1], "column parent has 1 rows, arrival_sim_s has 2"),
    ):
        with pytest.raises(ValueError, match=message):
            simulate(PROFILE, *two, parent=parent)
    with pytest.raises(ValueError, match="0 for requests with parents"):
        simulate(PROFILE, *two, parent=[-1, 0], concurrency=1)
