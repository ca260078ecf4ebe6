"""Digests of objects, and the mutable objects within them.

Attributes that begin with an underscore are skipped: they are an author's caches, which agents do
not save either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from metropolis.world.base import World

_ATOMS = (
    *(str, int, float, bool, bytes, type(None), type, ModuleType, FunctionType, MethodType),
    World,  # watched separately
)
Held = tuple[str, Any]
"""(path, object), as in ("memory['friends']", [...])."""


def digest(value: Any) -> int:
    """A number that changes whenever a part of `value` changes."""
    return _digest(value, {})


def _digest(value: Any, met: dict[int, Any]) -> int:
    """`met` contains the values visited so far, by id: each is visited once."""
    if isinstance(value, np.ndarray):
        return hash((value.shape, value.tobytes()))
    if isinstance(value, bytearray):
        return hash(bytes(value))
    if isinstance(value, _ATOMS):
        return hash(value)
    if id(value) in met:
        return 0
    met[id(value)] = value
    if isinstance(value, set | frozenset):
        return hash(frozenset(_digest(item, {}) for item in value))
    parts = [(path, _digest(item, met)) for path, item in _parts(value)]
    return hash((type(value).__qualname__, tuple(parts)))


def mutable_parts(owner: Any) -> dict[int, Held]:
    """The mutable objects within `owner`, by id, with the shortest path to each."""
    found: dict[int, Held] = {}
    edge: list[Held] = [("", owner)]
    while edge:
        following = []
        for path, value in edge:
            if isinstance(value, _ATOMS) or id(value) in found:
                continue
            found[id(value)] = (path, value)
            following += [(path + step, item) for step, item in _parts(value)]
        edge = following
    return {key: held for key, held in found.items() if _is_mutable(held[1])}


def _is_mutable(value: Any) -> bool:
    kinds = (dict, list, set, deque, bytearray, np.ndarray)
    return isinstance(value, kinds) or hasattr(value, "__dict__")


def _parts(value: Any) -> Iterator[Held]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (("{…}", item) for item in value)
    elif not isinstance(value, np.ndarray):
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        names = [*getattr(value, "__dict__", ()), *slots]
        for name in names:
            if not name.startswith("_") and hasattr(value, name):
                yield f".{name}", getattr(value, name)
