"""Entities and events of a world: plain, frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from inspect import iscoroutine
from math import isfinite
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from metropolis.names import cut
from metropolis.types import MetropolisError, Position, Step

_PLAIN = (int, float, bool, type(None))


def freeze(value: Any) -> Any:
    """`value` with mappings made read-only and lists made tuples, so that readers can share it.

    Raises MetropolisError on anything but texts, finite numbers, None, and mappings and lists of
    these.
    """
    if isinstance(value, np.generic):  # Gymnasium's spaces sample these
        return freeze(value.item())
    if isinstance(value, Enum):  # a checkpoint also stores the value
        return freeze(value.value)
    if isinstance(value, float) and not isfinite(value):
        raise MetropolisError(
            f"a world's value is {value}, which JSON does not support; write None, or leave it out"
        )
    if isinstance(value, str):
        return checked_text(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise MetropolisError(f"the key {key!r} of a world's value should be a text")
        return MappingProxyType({checked_text(key): freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if iscoroutine(value):
        value.close()  # Python would warn of it as well
        raise MetropolisError(f"{cut(value)} was not awaited; write await before the call")
    raise MetropolisError(
        f"{cut(value)} has the type {type(value).__name__}; a world's values are texts, numbers, "
        "None, and mappings and lists of these, so that they can be shared, saved and compared"
    )


def checked_text(text: str) -> str:
    """`text`. Raises MetropolisError if it cannot be written to a file.

    A lone surrogate cannot be encoded in UTF-8; JSON and `surrogateescape` can produce one.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MetropolisError(
                f"the text {cut(text)} contains {text[error.start]!r}, a lone surrogate that UTF-8 "
                "cannot encode; leave it out"
            ) from None
    return text


def thaw(value: Any) -> Any:
    """The inverse of `freeze`, for JSON."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value


def _frozen_items(items: Any, whose: str, *names: str) -> Any:
    """`freeze(items)`, with errors that name the owner: the format `whose` filled with `names`."""
    try:
        return freeze(items)
    except RecursionError:
        raise MetropolisError(
            f"{whose.format(*names)} contains itself or is nested too deeply; it should be data "
            "that JSON represents"
        ) from None
    except MetropolisError as error:
        whose = whose.format(*names)
        if isinstance(items, Mapping):
            for key, item in items.items():
                try:
                    freeze(item)
                except MetropolisError as wrong:
                    raise MetropolisError(f"{whose}, key {key!r}: {wrong}") from None
        raise MetropolisError(f"{whose}: {error}") from None


def check_kind(kind: Any, whose: str) -> None:
    """Raise MetropolisError if `kind` is not a text."""
    if not isinstance(kind, str) or not kind:
        raise MetropolisError(f"the kind of {whose} is {cut(kind)}; it should be a text")
    checked_text(kind)


def checked_position(given: Any, whose: str) -> Position:
    """`given` as two floats. Raises MetropolisError if it is not two numbers."""
    try:
        x, y = given
        return float(x + 0.0), float(y + 0.0)  # the addition raises TypeError on texts
    except (TypeError, ValueError, OverflowError) as error:
        raise MetropolisError(
            f"the position of {whose!r} is {cut(given)}; it should be two numbers"
        ) from error


@dataclass(frozen=True, slots=True)
class Entity:
    """An agent's body or a thing, as of the beginning of a step.

    `entity["mood"]` reads a key of its state. Entities are not hashable: keep names in sets.
    """

    name: str
    """Unique in the world; a body has the name of its agent."""
    position: Position
    kind: str = "thing"
    """A category chosen by the world; `agent` for bodies."""
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", checked_position(self.position, self.name))
        if self.name == "":
            raise MetropolisError("the name of an entity is ''; it should be a text, not empty")
        freeze((self.name, self.kind))
        object.__setattr__(self, "state", _frozen_items(self.state, "the state of {!r}", self.name))

    def __reduce__(self) -> Any:
        return Entity, (self.name, self.position, self.kind, thaw(self.state))

    def moved(self, position: Position) -> Entity:
        """This entity at another position; it shares the frozen state."""
        entity, put = object.__new__(Entity), object.__setattr__
        put(entity, "name", self.name)
        put(entity, "position", checked_position(position, self.name))
        put(entity, "kind", self.kind)
        put(entity, "state", self.state)
        return entity

    def __getitem__(self, key: str) -> Any:
        return self.state[key]

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise TypeError(f"{self.name!r} is read-only; a world's resolve writes: write({key}=…)")

    def __contains__(self, key: object) -> bool:
        return key in self.state

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        return self.state.get(key, default)


AGENT = "agent"
"""The kind of agents' bodies."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at the end of step `step`; perceived only in the step after it."""

    step: Step
    source: str
    """The name of the agent that caused it."""
    position: Position
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", checked_position(self.position, self.source))
        check_kind(self.kind, f"an event of {self.source!r}")
        data = _frozen_items(self.data, "the event {!r} of {!r}", self.kind, self.source)
        object.__setattr__(self, "data", data)

    def __reduce__(self) -> Any:
        return Event, (self.step, self.source, self.position, self.kind, thaw(self.data))

    def __getitem__(self, key: str) -> Any:
        return self.data[key]
