"""Parts are the whole, and changes lead from one to the other."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.world.parts import (
    CHUNK,
    PartsCache,
    apply_changes,
    changed_parts,
    from_parts,
    to_parts,
)

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(SCALARS, min_size=CHUNK - 1, max_size=3 * CHUNK)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=60,
)


@dataclass
class Memory:
    nodes: list[int] = field(default_factory=list)
    _hidden: int = 1


@given(PLAIN)
def test_parts_make_the_whole(value: Any) -> None:
    again = from_parts(dict(sorted(to_parts(value).items())))
    assert json.dumps(again) == json.dumps(value)  # the order of keys included


@given(PLAIN, PLAIN)
def test_changes_lead_from_one_to_the_other(before: Any, now: Any) -> None:
    old, new = to_parts(before), to_parts(now)
    assert apply_changes(old, changed_parts(old, new)) == new
    assert changed_parts(new, new) == {}


@given(st.integers(0, 20 * CHUNK), st.data())
def test_what_changes_is_sent_and_little_else(count: int, data: st.DataObject) -> None:
    memory = {"name": "ann", "memory": Memory(list(range(count))), "age": 3}
    before = to_parts(memory)
    if count and data.draw(st.booleans()):
        memory["memory"].nodes[data.draw(st.integers(0, count - 1))] += 1
    else:
        memory["memory"].nodes.append(-1)
    changed = changed_parts(before, to_parts(memory))
    if count not in (CHUNK, CHUNK - 1):  # where the list becomes long
        assert len(changed) == 1
    assert sum(len(body or b"") for body in changed.values()) < 10 * (CHUNK + 3)


@dataclass(frozen=True)
class Fixed:
    number: int
    inner: list[int]
    more: tuple[int, ...] = ()


@given(st.data())
def test_what_was_encoded_before_is_not_used_when_it_may_have_changed(data: st.DataObject) -> None:
    items: list[Any] = [
        Fixed(i, [], (i,)) if i % 3 == 0 else [i] if i % 3 == 1 else i for i in range(3 * CHUNK)
    ]
    items += [Fixed(i, i) for i in range(2 * CHUNK)]  # type: ignore[arg-type]
    encoded = PartsCache()
    for _ in range(data.draw(st.integers(1, 4))):
        assert to_parts({"a": items}, None, encoded) == to_parts({"a": items})
        which = data.draw(st.integers(0, len(items) - 1))
        match items[which]:
            case Fixed(inner=list() as inner):
                inner.append(1)
            case list() as inner:
                inner.append(1)
            case _:
                items[which] = data.draw(st.integers(0, 9))
        if data.draw(st.booleans()):
            del items[data.draw(st.integers(0, len(items) - 1))]
    assert to_parts({"a": items}, None, encoded) == to_parts({"a": items})


def test_what_cannot_change_is_encoded_once() -> None:
    items = [Fixed(i, (), (i,)) for i in range(5 * CHUNK)]  # type: ignore[arg-type]
    encoded = PartsCache()
    first = to_parts({"a": items}, None, encoded)
    items.append(Fixed(-1, (), ()))  # type: ignore[arg-type]
    second = to_parts({"a": items}, None, encoded)
    assert [second[name] is body for name, body in first.items()] == [True] * 5


def test_dataclasses_are_as_json_has_them() -> None:
    value = {"memory": Memory(list(range(100)))}
    assert from_parts(to_parts(value)) == msgspec.json.decode(msgspec.json.encode(value))


BEYOND = 1 << 70
"""An integer that JSON can hold and MessagePack cannot."""


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), "\ud800", {(1, 2): 3}, object()),
        *([None, -float("inf")], {"a": [None, BEYOND, float("nan")]}, (None, np.float64("nan"))),
    ],
)
@pytest.mark.parametrize("long", [False, True])
def test_what_json_cannot_hold_is_refused(value: Any, long: bool) -> None:
    with pytest.raises((TypeError, ValueError)):
        to_parts({"a": [value] * (2 * CHUNK if long else 1)})


@pytest.mark.parametrize("value", [[None, BEYOND], [None, "\xcb\x7f\xf8", 1.5], [None, -(2**62)]])
def test_null_beside_other_values_is_none(value: Any) -> None:
    assert from_parts(to_parts({"a": value})) == {"a": value}
