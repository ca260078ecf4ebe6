"""A digest changes with every mutable part of a value, however deep."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from metropolis.world.digest import digest, mutable_parts

CHANGES: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "list": ([1], lambda value: value.append(2)),
    "dict": ({"a": 1}, lambda value: value.update(a=2)),
    "set": ({1}, lambda value: value.add(2)),
    "deque": (deque([1]), lambda value: value.append(2)),
    "bytearray": (bytearray(b"a"), lambda value: value.append(2)),
    "array": (np.zeros(2), lambda value: value.fill(1)),
    "object": (SimpleNamespace(a=1), lambda value: setattr(value, "a", 2)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_it_sees_a_change_of_each_kind_of_value(kind: str) -> None:
    value, change = CHANGES[kind]
    owner = {"a": (value,)}
    before = digest(owner)
    assert digest(owner) == before
    change(value)
    assert digest(owner) != before
    assert mutable_parts(owner)[id(value)] == ("['a'][0]", value)
