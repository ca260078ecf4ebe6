"""Agents' private state as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec
import numpy as np

from metropolis.types import MetropolisError
from metropolis.world.base import Agent
from metropolis.world.parts import ChunkCache, Parts, from_parts, to_json, to_parts


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


class SavedWhenRead(Mapping[int, msgspec.Raw]):
    """The saved states of `agents` by number, as of the moment they are looked up, as JSON."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents

    def __getitem__(self, number: int) -> msgspec.Raw:
        return save_json(self._agents[number])

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
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) cannot be saved ({error}); its "
            "fields should be plain data, or it should define save() and restore(saved)"
        ) from error


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
        agent.restore(saved)
        return
    try:
        for name, kind in _fields(type(agent), agent.name).items():
            value = msgspec.convert(saved[name], kind, str_keys=True, dec_hook=_decode)
            setattr(agent, name, value)
    except (TypeError, KeyError, msgspec.ValidationError) as error:
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) cannot be restored from its "
            f"saved state ({error}); it should have the fields it had when it was saved"
        ) from error


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
    return {f.name: hints[f.name] for f in fields(kind) if not f.name.startswith("_")}


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decode(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        element = kind.__args__[1].__args__[0] if hasattr(kind, "__args__") else None
        return np.array(value, element)
    raise TypeError(f"{kind} is not plain data")
