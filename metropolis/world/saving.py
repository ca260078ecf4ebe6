"""Agents' private state as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from metropolis.names import cut, shortened
from metropolis.types import MetropolisError
from metropolis.world.base import Agent
from metropolis.world.encoding import UNENCODABLE, first_unencodable, plain_array
from metropolis.world.parts import Parts, PartsCache, from_parts, to_json, to_parts
from metropolis.world.user_errors import describe_error


def save(agent: Agent) -> Any:
    """The state of `agent` for `restore`, as plain data. Raises MetropolisError if impossible."""
    with _saving(agent):
        if hasattr(agent, "save"):
            with _of_author(agent, "saved"):
                saved = agent.save()
        else:
            saved = msgspec.to_builtins(_state(agent), str_keys=True, enc_hook=plain_array)
        json.dumps(saved, allow_nan=False, ensure_ascii=False).encode()  # raises on invalid values
        return saved


def save_json(agent: Agent) -> msgspec.Raw:
    """Like `save`, as JSON: plain data takes several times the memory and the time.

    Raises MetropolisError if impossible.
    """
    if hasattr(agent, "save"):
        return msgspec.Raw(msgspec.json.encode(save(agent)))
    with _saving(agent):
        return to_json(_state(agent), plain_array)


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


def save_parts(agent: Agent, cache: PartsCache) -> dict[str, bytes]:
    """Like `save`, as JSON in parts; `cache` is that of `to_parts`.

    Raises MetropolisError if impossible.
    """
    if hasattr(agent, "save"):
        return to_parts(save(agent), None, cache)
    with _saving(agent):
        return to_parts(_state(agent), plain_array, cache)


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


@contextmanager
def _of_author(agent: Agent, what: str) -> Iterator[None]:
    """Turn an exception of the class of `agent`, which cannot be `what`, into a MetropolisError."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise MetropolisError(
            f"the agent {agent.name!r} cannot be {what}: {describe_error(error, agent)}"
        ) from error


def _unsaved(agent: Agent) -> str:
    """The beginning of an error: the field of `agent` that cannot be saved, if one is known."""
    if hasattr(agent, "save"):
        return ""
    found = first_unencodable(_state(agent), lambda value: to_json({"": value}, plain_array))
    return "" if found is None else f"the field {found[0]!r} of "


def _state(agent: Agent) -> dict[str, Any]:
    return {name: getattr(agent, name) for name in _fields(type(agent), agent.name)}


def restore_parts(agent: Agent, parts: Parts, cache: PartsCache) -> None:
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
        with _of_author(agent, "restored"):
            agent.restore(saved)
        return
    for name, kind in _fields(type(agent), agent.name).items():
        found = saved
        try:
            found = saved[name]
            value = msgspec.convert(found, kind, str_keys=True, dec_hook=_decode)
            setattr(agent, name, value)
        except (TypeError, KeyError, msgspec.ValidationError) as error:
            raise MetropolisError(
                f"the field {name!r} of the agent {agent.name!r} ({type(agent).__name__}) cannot "
                f"be restored from its saved state {cut(found, 60)} ({error}); its value should "
                "have the type of the field, and the field the type that it had when it was saved"
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
        hints = _type_hints(kind)
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


_type_hints = cache(get_type_hints)


def resolve_types(module: ModuleType) -> None:
    """Look up the classes that fields of the agents of `module` name, while it is in `sys.modules`.

    Once a file is loaded again, names of its types mean the classes of the new module.
    """
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, Agent):
            with suppress(Exception):  # saving raises it
                for of in _type_hints(kind).values():
                    with suppress(Exception):
                        msgspec.json.Decoder(of, dec_hook=_decode)  # keeps what nested fields name


def _has_tuple_keys(kind: Any) -> bool:
    parts = get_args(kind)
    is_mapping = isinstance(origin := get_origin(kind), type) and issubclass(origin, Mapping)
    return (is_mapping and _is_tuple(parts[0])) or any(map(_has_tuple_keys, parts))


def _is_tuple(kind: Any) -> bool:
    of = get_origin(kind) or kind
    return (isinstance(of, type) and issubclass(of, tuple)) or any(map(_is_tuple, get_args(kind)))


def _decode(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        element = kind.__args__[1].__args__[0] if hasattr(kind, "__args__") else None
        return np.array(value, element)
    raise TypeError(f"{kind} is not plain data")
