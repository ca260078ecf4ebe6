"""Agents' private state as JSON, and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from functools import cache, cached_property
from inspect import getattr_static
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from metropolis.names import cut, shortened
from metropolis.types import MetropolisError
from metropolis.world.base import Agent
from metropolis.world.encoding import UNENCODABLE, first_unencodable
from metropolis.world.parts import (
    ChunkCache,
    Parts,
    from_parts,
    is_immutable,
    to_json,
    to_parts,
)
from metropolis.world.user_errors import describe_error


def save(agent: Agent) -> Any:
    """The state of `agent` for `restore`, as plain data. Raises MetropolisError if impossible."""
    with _saving(agent):
        if hasattr(agent, "save"):
            saved = agent.save()
        else:
            saved = msgspec.to_builtins(_state(agent), str_keys=True, enc_hook=_encode)
        json.dumps(saved, allow_nan=False, ensure_ascii=False).encode()  # raises on invalid values
        return saved


def save_json(agent: Agent) -> msgspec.Raw:
    """Like `save`, as JSON: plain data takes several times the memory and the time.

    Raises MetropolisError if impossible.
    """
    if hasattr(agent, "save"):
        return msgspec.Raw(msgspec.json.encode(save(agent)))
    with _saving(agent):
        return to_json(_state(agent), _encode)


def save_checked(agent: Agent) -> Any:
    """The state of `agent` as read from JSON; raises MetropolisError if it does not restore it."""
    saved = msgspec.json.decode(save_json(agent))
    check_saved(agent, saved)
    return saved


def copies_of(agents: Iterable[Agent]) -> list[Agent]:
    """Deep copies of `agents`, which share what these share.

    Raises MetropolisError if one cannot be copied.
    """
    memo: dict[int, Any] = {}
    return [copy_of(agent, memo) for agent in agents]


def copy_of(agent: Agent, memo: dict[int, Any] | None = None) -> Agent:
    """A deep copy of `agent`, also of the fields that are not saved; `memo` as for `deepcopy`.

    Raises MetropolisError if it cannot be copied.
    """
    try:
        return deepcopy(agent, memo)
    except Exception as error:  # an author's object may raise anything
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) cannot be copied ({error}); all "
            "its fields are copied, also those whose names begin with an underscore: an object "
            "that copies may share should define __deepcopy__ and return itself"
        ) from error


class Sample:
    """What to check of what occurs often: the first 40 of each kind, then ever fewer."""

    def __init__(self) -> None:
        self._seen: Counter[type] = Counter()
        self._next: dict[type, int] = {}

    def takes(self, kind: type) -> bool:
        """Whether to check this one, of `kind`."""
        self._seen[kind] += 1
        seen = self._seen[kind]
        if seen < self._next.get(kind, 0):
            return False
        self._next[kind] = max(seen + 1, int(1.05 * seen))
        return True


def check_saved(agent: Agent, saved: Any, *, exact: bool = False) -> None:
    """Raise MetropolisError if `saved`, the state of `agent`, does not restore it.

    Unless `exact`, a field may hold 0 and be restored as 0.0: `max(0, …)` makes such numbers.
    """
    if hasattr(agent, "save"):
        return
    check_names(agent)
    _check_shared(agent)
    restored = copy(agent)
    restore(restored, saved)
    for each in fields(agent):  # type: ignore[arg-type]
        if each.name.startswith("_"):
            continue
        value, again = getattr(agent, each.name), getattr(restored, each.name)
        if not _is_same(value, again, exact):
            raise MetropolisError(
                f"the field {each.name!r} of the agent {agent.name!r} ({type(agent).__name__}) is "
                f"{_shown(value)} and would be restored as {_shown(again)}; values should have the "
                "type of their field, which names that of its items, as in dict[int, str] or "
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
    """Attributes of an instance of a dataclass that are neither saved nor caches."""
    kind: type = type(of)
    names = getattr(of, "__dict__", {}).keys() - _known_names(kind)
    return (name for name in sorted(names) if not name.startswith("_"))


@cache
def _known_names(kind: type) -> frozenset[str]:
    """Fields, cached properties, and what the engine sets."""
    cached = (name for name in dir(kind) if isinstance(getattr_static(kind, name), cached_property))
    set_by_us = Agent.__annotations__
    return frozenset([*set_by_us, *cached, *(each.name for each in fields(kind))])


def _check_shared(agent: Agent) -> None:
    """Raise MetropolisError if `agent` has state that restoring would lose or divide.

    This is one object, which can change, in two places; two views of one array; or an attribute of
    a nested object that is none of its fields.
    """
    who = f"the agent {agent.name!r} ({type(agent).__name__})"
    places: dict[int, str] = {}
    views: dict[int, list[tuple[str, Any]]] = {}  # by the owner of their memory

    def visit(value: Any, place: str) -> None:
        if type(value) in (list, dict, set) or isinstance(value, np.ndarray):
            is_mutable = True
        else:
            is_mutable = is_dataclass(value) and not is_immutable(value)
        if is_mutable:
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
        elif is_mutable and is_dataclass(value):
            for name in _undeclared(value):
                raise MetropolisError(
                    f"{who} has set {name!r} of the {type(value).__name__} at {place}, which is "
                    "not one of its fields and is not saved; declare a field"
                )
            for each in fields(value):
                visit(getattr(value, each.name), f"{place}.{each.name}")

    for each in fields(agent):  # type: ignore[arg-type]
        if not each.name.startswith("_"):
            visit(getattr(agent, each.name), each.name)


def _owner(array: Any) -> Any:
    """The object that owns the memory of `array`."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _is_same(a: Any, b: Any, exact: bool) -> bool:
    """Whether two values are equal, and of equal types; see `check_saved`."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return not exact and type(a) is int and type(b) is float and a == b
    if isinstance(a, Mapping):
        return _is_same(list(a.items()), list(b.items()), exact)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_is_same(*both, exact) for both in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        known = {item: item for item in b}
        return a == b and all(_is_same(item, known[item], exact) for item in a)
    if isinstance(a, datetime | time):  # equal ones may be of different zones
        return a == b and a.fold == b.fold and repr(a.tzinfo) == repr(b.tzinfo)
    if is_dataclass(a):
        return all(_is_same(getattr(a, f.name), getattr(b, f.name), exact) for f in fields(a))
    return bool(a == b)


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


def save_parts(agent: Agent, cache: ChunkCache) -> dict[str, bytes]:
    """Like `save`, as JSON in parts; `cache` is that of `to_parts`.

    Raises MetropolisError if impossible.
    """
    if hasattr(agent, "save"):
        return to_parts(save(agent), None, cache)
    with _saving(agent):
        return to_parts(_state(agent), _encode, cache)


@contextmanager
def _saving(agent: Agent) -> Iterator[None]:
    try:
        yield
    except UNENCODABLE as error:
        raise MetropolisError(
            f"{_unsaved(agent)}the agent {agent.name!r} ({type(agent).__name__}) cannot be saved "
            f"({error}); its fields should be plain data, or it should define save() and "
            "restore(saved)"
        ) from error


def _unsaved(agent: Agent) -> str:
    """The beginning of an error: the field of `agent` that cannot be saved, if one is known."""
    if hasattr(agent, "save"):
        return ""
    found = first_unencodable(_state(agent), lambda value: to_json({"": value}, _encode))
    return "" if found is None else f"the field {found[0]!r} of "


def _state(agent: Agent) -> dict[str, Any]:
    return {name: getattr(agent, name) for name in _fields(type(agent), agent.name)}


def restore_parts(agent: Agent, parts: Parts, cache: ChunkCache) -> None:
    """Like `restore`, from the result of `save_parts` with this `cache`: objects that cannot change
    are not made again.
    """
    if not hasattr(agent, "restore"):
        try:
            restore(agent, from_parts(parts, cache))
            return
        except MetropolisError:  # an item of a class derived from the field's type
            pass
    restore(agent, from_parts(parts))


def restore(agent: Agent, saved: Any) -> None:
    """Set the state of `agent` from the result of `save`. Raises MetropolisError on a mismatch."""
    if hasattr(agent, "restore"):
        try:
            agent.restore(saved)
        except Exception as error:
            raise MetropolisError(
                f"the agent {agent.name!r} cannot be restored: {describe_error(error, agent)}"
            ) from error
        return
    for name, kind in _fields(type(agent), agent.name).items():
        try:
            value = msgspec.convert(saved[name], kind, str_keys=True, dec_hook=_decode)
            setattr(agent, name, value)
        except (TypeError, KeyError, msgspec.ValidationError) as error:
            raise MetropolisError(
                f"the field {name!r} of the agent {agent.name!r} ({type(agent).__name__}) cannot "
                f"be restored from its saved state ({error}); its value should have the type of "
                "the field, and the field the type that it had when it was saved"
            ) from error


def restore_all(agents: Sequence[Agent], saved: Mapping[str, Any]) -> None:
    """Set the states of all `agents` from `saved`, by name; MetropolisError on a mismatch."""
    check_same_agents(list(saved), agents)
    for agent in agents:
        restore(agent, saved[agent.name])


def check_same_agents(known: Sequence[str], agents: Sequence[Agent]) -> None:
    """Raise MetropolisError unless `agents` have the `known` names, in this order."""
    names = [agent.name for agent in agents]
    if list(known) != names:
        raise MetropolisError(
            f"the run has {len(known)} agents: {shortened(known, 8)}; the world now makes "
            f"{len(names)}: {shortened(names, 8)}; the agents of a run, their names and their "
            "order do not change"
        )


@cache
def _fields(kind: type[Agent], agent: str) -> dict[str, Any]:
    """The types of the fields to save; resolved when saving, so that restoring cannot fail here."""
    if not is_dataclass(kind):
        raise MetropolisError(
            f"the agent {agent!r} ({kind.__name__}) cannot be saved; make it a "
            "dataclass, or define save() and restore(saved)"
        )
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise MetropolisError(
            f"the agent {agent!r} ({kind.__name__}) cannot be saved ({error}); the types of its "
            "fields should be defined in its module at run time, not only for type checkers"
        ) from error
    saved = {f.name: hints[f.name] for f in fields(kind) if not f.name.startswith("_")}
    for name, of in saved.items():
        if _has_tuple_keys(of):
            raise MetropolisError(
                f"the field {name!r} of the agent {agent!r} ({kind.__name__}) has tuples as keys "
                f"({of}), which cannot be saved; keys should be texts, numbers or dates"
            )
    return saved


def _has_tuple_keys(kind: Any) -> bool:
    parts = get_args(kind)
    is_mapping = isinstance(origin := get_origin(kind), type) and issubclass(origin, Mapping)
    return (is_mapping and _is_tuple(parts[0])) or any(map(_has_tuple_keys, parts))


def _is_tuple(kind: Any) -> bool:
    of = get_origin(kind) or kind
    return (isinstance(of, type) and issubclass(of, tuple)) or any(map(_is_tuple, get_args(kind)))


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decode(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        element = kind.__args__[1].__args__[0] if hasattr(kind, "__args__") else None
        return np.array(value, element)
    raise TypeError(f"{kind} is not plain data")
