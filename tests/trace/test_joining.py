"""A trace that is cut into pieces and joined again is the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metropolis.trace.joining import joined
from tests.small_traces import small_trace


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 8)), st.booleans())
def test_joined_pieces_are_the_trace(seed: int, cuts: list[int], with_texts: bool) -> None:
    trace = small_trace(seed, agents=3, steps=8, edge=5, radius=2, talk=0.3)
    calls = trace.calls
    if with_texts:
        texts = [None if call % 3 else f"{call}" for call in range(len(calls))]
        calls = replace(calls, prompt=texts, completion=texts)
        trace = replace(trace, calls=calls)
    pieces = [trace.window(first, last) for first, last in pairwise(sorted({0, *cuts, 8}))]
    pieces = [
        piece
        if any(piece.calls.prompt or ())
        else replace(piece, calls=replace(piece.calls, prompt=None, completion=None))
        for piece in pieces
    ]
    pieces[1:] = [
        replace(
            piece,
            calls=replace(
                piece.calls,
                functions=piece.calls.functions[::-1],
                function=len(piece.calls.functions) - 1 - piece.calls.function,
            ),
        )
        for piece in pieces[1:]
    ]
    found = joined(pieces)
    assert found.meta == trace.meta
    assert np.array_equal(found.positions, trace.positions)
    for names, name in (("functions", "function"), ("models", "model")):
        for of in (found.calls, calls):
            assert len(getattr(of, name)) == len(calls)
        expected = [getattr(calls, names)[i] for i in getattr(calls, name)]
        assert [getattr(found.calls, names)[i] for i in getattr(found.calls, name)] == expected
        assert [*getattr(found.calls, names)] == sorted(getattr(calls, names))
    for column in (
        *("step", "agent", "prompt_tokens", "output_tokens", "prefix_id", "prefix_tokens"),
        *("parent_offsets", "parents"),
    ):
        one, other = getattr(found.calls, column), getattr(calls, column)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    texts_expected = calls.prompt if any(calls.prompt or ()) else None
    assert found.calls.prompt == found.calls.completion == texts_expected
