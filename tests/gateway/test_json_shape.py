"""Bounds on the cost of decoding, checked without decoding."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.gateway import json_shape
from metropolis.gateway.json_shape import DEPTH_MAX, WEIGHT_MAX, check_shape
from metropolis.types import MetropolisError

NESTED: Any = st.recursive(
    st.none() | st.integers() | st.text('"\\[]{},:a\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\]'), inner),
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


def weight_of(value: Any) -> int:
    """Return the weight without commas for scalars; a container adds one less than its values."""
    if isinstance(value, str):
        return 4
    if isinstance(value, dict):
        return 16 + sum(16 + 4 + weight_of(one) for one in value.values()) + max(0, len(value) - 1)
    if isinstance(value, list):
        return 16 + sum(map(weight_of, value)) + max(0, len(value) - 1)
    return 0


@given(NESTED, st.integers(1, 7), st.booleans())
def test_bounds_are_exact_wherever_pieces_end(value: Any, piece_bytes: int, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_shape, "PIECE_BYTES", piece_bytes)
        depth, weight = depth_of(value), weight_of(value)
        for depth_max, weight_max, is_right in (
            (depth, weight, True),
            (max(0, depth - 1), weight, depth == 0),
            (depth, max(0, weight - 1), weight == 0),
        ):
            patched.setattr(json_shape, "DEPTH_MAX", depth_max)
            patched.setattr(json_shape, "WEIGHT_MAX", weight_max)
            if is_right:
                json_shape._check_pieces(text)
            else:
                with pytest.raises(MetropolisError):
                    json_shape._check_pieces(text)


def test_what_stands_in_strings_costs_nothing() -> None:
    check_shape(json.dumps({"prompt": '[{":,\\"' * WEIGHT_MAX}).encode())
    check_shape(json.dumps({"prompt": list(range(WEIGHT_MAX - 100))}).encode())


def test_depth_is_bounded() -> None:
    check_shape(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
    with pytest.raises(MetropolisError, match="the body is nested too deep"):
        check_shape(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))
