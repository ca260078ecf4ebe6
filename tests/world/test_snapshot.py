"""A snapshot matches the data that it was made of, as long as nothing in it changes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis._core import Snapshot, have_same_items
from metropolis.world.parts import PartsCache, to_parts


@dataclass
class Open:
    a: Any = 1
    b: Any = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    a: Any = 1
    b: Any = ()


@dataclass(slots=True)
class Slotted:
    a: Any = None
    b: Any = ()


LOOKALIKES: list[Any] = [1, True, 1.0, 0, False, 0.0, "1", None, 10**9, b"1", date(2026, 1, 1)]
"""Some are equal, and none is encoded like another."""
DATA = st.recursive(
    st.sampled_from(LOOKALIKES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
        | st.builds(Open, inner, inner)
        | st.builds(Slotted, inner, inner)
        | st.builds(Frozen, inner, inner)
    ),
    max_leaves=12,
)


def contents(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return [getattr(value, of.name) for of in fields(value)] if is_dataclass(value) else []


def changeable(value: Any) -> list[Any]:
    """All containers in `value` that can be changed in place."""
    found = [] if isinstance(value, tuple | Frozen) or not contains(value) else [value]
    for item in contents(value):
        found += changeable(item)
    return found


def contains(value: Any) -> bool:
    return isinstance(value, list | dict | Open | Slotted)


def change(container: Any, data: st.DataObject) -> None:
    new = data.draw(DATA)
    if isinstance(container, list):
        if container and data.draw(st.booleans()):
            container[data.draw(st.integers(0, len(container) - 1))] = new
        elif container and data.draw(st.booleans()):
            del container[data.draw(st.integers(0, len(container) - 1))]
        else:
            container.append(new)
    elif isinstance(container, dict):
        if container and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(container)))
            del container[key]
            if data.draw(st.booleans()):
                container[key] = new  # the last one now
        else:
            container[data.draw(st.text("ab", max_size=2))] = new
    else:
        setattr(container, data.draw(st.sampled_from("ab")), new)


@given(DATA)
def test_unchanged_data_matches(value: Any) -> None:
    snapshot = Snapshot(value)
    assert snapshot.is_complete
    assert snapshot.matches(value)


@given(DATA, st.data())
def test_parts_are_those_of_the_data_as_it_is_now(value: Any, data: st.DataObject) -> None:
    mind, cache = {"a": value, "b": value}, PartsCache()
    for _ in range(data.draw(st.integers(1, 5))):
        assert to_parts(mind, None, cache) == to_parts(mind)
        containers = changeable(mind)
        change(data.draw(st.sampled_from(containers)), data)
        if "a" not in mind:
            mind["a"] = value
    assert to_parts(mind, None, cache) == to_parts(mind)


class Text(str):
    __slots__ = ()


@dataclass
class WithProperty:
    a: int = 1


WithProperty.a = property(lambda _: 1)  # type: ignore[assignment,method-assign]


@dataclass
class WithGetattr:
    a: int = 1

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@dataclass
class WithItems(list[int]):
    a: int = 1


@dataclass
class Incomplete:
    a: int = field(init=False)


@pytest.mark.parametrize(
    "value",
    [
        *({1}, np.zeros(2), object(), Text("a"), int, 1j, WithGetattr(), Incomplete()),
        *(WithProperty.__new__(WithProperty), WithItems()),
    ],
)
def test_other_data_matches_nothing(value: Any) -> None:
    for data in (value, [1, value], {"a": value}, (value,), Frozen(value), Open(value)):
        snapshot = Snapshot(data)
        assert not snapshot.is_complete
        assert not snapshot.matches(data)


@pytest.mark.parametrize("value", [date.min, datetime.min, time.min, timedelta(1), b"a", 10**30])
def test_objects_that_cannot_change_are_compared_by_identity(value: Any) -> None:
    assert Snapshot([value]).matches([value])
    assert not Snapshot([value]).matches([LOOKALIKES[0]])


def test_data_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RecursionError, match="in a snapshot"):
        Snapshot(value)
    snapshot = Snapshot([[[]]])
    assert not snapshot.matches(value)


def test_the_same_items() -> None:
    items = [object(), 1.5]
    assert have_same_items(items, list(items))
    assert not have_same_items(items, items[:1])
    assert not have_same_items(items, [items[0], float("1.5")])


@pytest.mark.parametrize("kind", [list, dict])
def test_an_item_that_its_class_removes_is_kept_until_it_is_examined(kind: type[Any]) -> None:
    """Plain data that takes its memory meanwhile would be examined in its place."""
    others: list[Open] = []

    class Removing(type):
        def __getattr__(cls, name: str) -> Any:
            if name == "__dataclass_fields__":
                container.clear()
                others.extend(Open() for _ in range(5000))
            raise AttributeError(name)

    class Removed(metaclass=Removing):
        pass

    container: Any = [Removed()] if kind is list else {"a": Removed()}
    assert not Snapshot(container).is_complete
    assert others
