"""Whether agents' saved states restore them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from functools import cache, cached_property
from inspect import getattr_static
from typing import Any

import msgspec
import numpy as np

from metropolis._core import is_immutable
from metropolis.names import cut
from metropolis.types import MetropolisError
from metropolis.world.base import Agent
from metropolis.world.saving import restore, save_json

_MUTABLE = list, dict, set, bytearray


def save_checked(agent: Agent) -> Any:
    """The state of `agent` as read from JSON; raises MetropolisError if it does not restore it."""
    saved = msgspec.json.decode(save_json(agent))
    check_saved(agent, saved)
    return saved


class Sample:
    """Decides which occurrences of each kind are checked: the first 40, then ever fewer."""

    def __init__(self) -> None:
        self._seen: Counter[type] = Counter()
        self._next: dict[type, int] = {}

    def takes(self, kind: type) -> bool:
        """Count an occurrence of `kind`; return whether to check it."""
        self._seen[kind] += 1
        seen = self._seen[kind]
        if seen < self._next.get(kind, 0):
            return False
        self._next[kind] = max(seen + 1, int(1.05 * seen))
        return True


class SavedWhenRead(Mapping[int, msgspec.Raw]):
    """The saved states of `agents` by number, as of the moment they are looked up, as JSON.

    Looking up raises MetropolisError if the state cannot be restored; a sample is checked.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents, self._sample = agents, Sample()

    def __getitem__(self, number: int) -> msgspec.Raw:
        agent = self._agents[number]
        saved = save_json(agent)
        if self._sample.takes(type(agent)):
            check_saved(agent, msgspec.json.decode(saved))
        return saved

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._agents)))

    def __len__(self) -> int:
        return len(self._agents)


def check_saved(agent: Agent, saved: Any, *, exact: bool = False) -> None:
    """Raise MetropolisError if `saved`, the state of `agent`, does not restore it.

    Unless `exact`, a field may hold 0 and be restored as 0.0: `max(0, …)` makes such numbers.
    """
    if hasattr(agent, "save"):
        return
    check_names(agent)
    try:
        _check_shared(agent)
        _check_restored(agent, saved, exact)
    except RecursionError:
        raise MetropolisError(
            f"the state of the agent {agent.name!r} ({type(agent).__name__}) is nested too deeply "
            "to be restored; it should be flatter, such as a list of objects that name each other"
        ) from None


def _check_restored(agent: Agent, saved: Any, exact: bool) -> None:
    restored = copy(agent)
    restore(restored, saved)
    for each in fields(agent):  # type: ignore[arg-type]
        if each.name.startswith("_"):
            continue
        values = getattr(agent, each.name), getattr(restored, each.name)
        if (found := _first_difference(*values, exact, each.name)) is not None:
            place, value, again = found
            at = f", at {place}," if place != each.name else ""
            raise MetropolisError(
                f"the field {each.name!r} of the agent {agent.name!r} ({type(agent).__name__}){at} "
                f"is {_shown(value)} and would be restored as {_shown(again)}; values should have "
                "the type of their field, which names that of its items, as in dict[int, str] or "
                "numpy.typing.NDArray[numpy.int32]"
            )


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return cut(value, 60)


def check_names(agent: Agent) -> None:
    """Raise MetropolisError if `agent` has state beside its fields, which is not saved."""
    if hasattr(agent, "save"):
        return
    for name in _undeclared(agent):
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) has set {name!r}, which is not "
            "one of its fields and is not saved; declare a field"
        )


def _undeclared(of: Any) -> Iterator[str]:
    """Attributes of an instance of a class with fields that are neither saved nor caches."""
    kind: type = type(of)
    names = getattr(of, "__dict__", {}).keys() - _known_names(kind)
    return (name for name in sorted(names) if not name.startswith("_"))


@cache
def _known_names(kind: type) -> frozenset[str]:
    """Fields, cached properties, and what the engine sets."""
    cached = (name for name in dir(kind) if isinstance(getattr_static(kind, name), cached_property))
    set_by_us = Agent.__annotations__
    return frozenset([*set_by_us, *cached, *field_names(kind)])


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass or a msgspec.Struct; none for other classes."""
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind))
    return kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else ()


def _check_shared(agent: Agent) -> None:
    """Raise MetropolisError if `agent` has state that restoring would lose or divide.

    This is one object, which can change, in two places; two views of one array; or an attribute of
    a nested object that is none of its fields.
    """
    who = f"the agent {agent.name!r} ({type(agent).__name__})"
    places: dict[int, str] = {}
    views: dict[int, list[tuple[str, Any]]] = {}  # by the owner of their memory

    def visit(value: Any, place: str) -> None:
        is_record = bool(field_names(value.__class__)) and not is_immutable(value)
        is_mutable = is_record and not _is_frozen_struct(value)
        if is_mutable or type(value) in _MUTABLE or isinstance(value, np.ndarray):
            if id(value) in places:
                raise MetropolisError(
                    f"{who} has one {type(value).__name__} in two places, {places[id(value)]} and "
                    f"{place}: restored, they would be two objects; keep a key or a number in one "
                    "of them"
                )
            places[id(value)] = place
        if isinstance(value, np.ndarray):
            others = views.setdefault(id(_owner(value)), [])
            for other, known in others:
                if np.shares_memory(value, known):
                    raise MetropolisError(
                        f"{who} has one array in two places, {other} and {place}, of which one is "
                        "a view: restored, they would be two arrays; keep a copy or a slice"
                    )
            others.append((place, value))
        if isinstance(value, Mapping):
            for key, item in value.items():
                visit(item, f"{place}[{key!r:.20}]")
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                visit(item, f"{place}[{i}]")
        elif is_record:
            for name in _undeclared(value):
                raise MetropolisError(
                    f"{who} has set {name!r} of the {type(value).__name__} at {place}, which is "
                    "not one of its fields and is not saved; declare a field"
                )
            for name in field_names(value.__class__):
                visit(getattr(value, name), f"{place}.{name}")

    for each in fields(agent):  # type: ignore[arg-type]
        if not each.name.startswith("_"):
            visit(getattr(agent, each.name), each.name)


def _is_frozen_struct(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) and value.__struct_config__.frozen


def _owner(array: Any) -> Any:
    """The object that owns the memory of `array`."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _first_difference(a: Any, b: Any, exact: bool, place: str) -> tuple[str, Any, Any] | None:
    """The place of the first difference between two values at `place`, and both values there.

    None if the values are the same. Equal values of different types differ; see `check_saved`.
    """
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(a, np.ndarray):
        same = isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    elif type(a) is not type(b):
        same = not exact and type(a) is int and type(b) is float and a == b
    elif isinstance(a, Mapping):
        same = _first_difference(list(a), list(b), exact, "") is None
        parts = [(f"[{one!r:.20}]", a[one], b[two]) for one, two in zip(a, b, strict=False)]
    elif isinstance(a, list | tuple):
        same = len(a) == len(b)
        parts = [(f"[{i}]", *both) for i, both in enumerate(zip(a, b, strict=False))]
    elif isinstance(a, set | frozenset):
        known = {item: item for item in b}
        same = a == b and not any(_first_difference(i, known[i], exact, "") for i in a)
    elif isinstance(a, datetime | time):  # equal ones may be of different zones
        same = a == b and a.fold == b.fold and repr(a.tzinfo) == repr(b.tzinfo)
    elif names := field_names(a.__class__):
        same, parts = True, [(f".{name}", getattr(a, name), getattr(b, name)) for name in names]
    else:
        same = bool(a == b)
    if not same:
        return place, a, b
    for name, one, two in parts:
        if (found := _first_difference(one, two, exact, place + name)) is not None:
            return found
    return None
