"""Finds mutable state outside entities and agents, and its changes.

Attributes that begin with an underscore are skipped: they are an author's caches, which agents do
not save either.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from metropolis.world.base import Agent, World

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
    return isinstance(value, dict | list | set | bytearray | np.ndarray) or hasattr(
        value, "__dict__"
    )


def _parts(value: Any) -> Iterator[Held]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (("{…}", item) for item in value)
    elif not isinstance(value, np.ndarray):
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        names = [*getattr(value, "__dict__", ()), *slots]
        for name in names:
            if not name.startswith("_") and hasattr(value, name):
                yield f".{name}", getattr(value, name)


class Watch:
    """Watches what must not change during a run: the world, module globals, and shared objects."""

    def __init__(self, world: World, agents: Mapping[str, Agent]) -> None:
        self._world, self._agents = world, agents
        kinds = {type(world), *(type(agent) for agent in agents.values())}
        self._modules = sorted({kind.__module__ for kind in kinds} - {"builtins"})
        self._kinds = [k for kind in kinds for k in kind.__mro__ if k not in World.__mro__]
        self._known = self._digests()

    def changes(self) -> Iterator[str]:
        """Describe the changes since the previous call."""
        now = self._digests()
        for what, (value, before) in self._known.items():
            if what in now and now[what][0] is value and now[what][1] != before:
                yield f"{what} changed, and is {value!r:.80} now"
        self._known = now

    def _digests(self) -> dict[str, tuple[Any, int]]:
        owned = dict(self._owned())
        return {what: (value, digest(value)) for what, value in owned.items()}

    def _owned(self) -> Iterator[Held]:
        for name, value in vars(self._world).items():
            if not name.startswith("_"):
                yield f"the world's attribute {name!r}", value
        for kind in self._kinds:
            for name, value in vars(kind).items():
                if isinstance(value, dict | list | set | np.ndarray) and not name.startswith("_"):
                    yield f"the class attribute {kind.__name__}.{name}", value
        for module in self._modules:
            for name, value in vars(sys.modules[module]).items():
                if isinstance(value, dict | list | set | np.ndarray) and not name.startswith("_"):
                    yield f"the global {module}.{name}", value
        yield from self._shared()

    def _shared(self) -> Iterator[Held]:
        first: dict[int, tuple[str, Held]] = {}
        for name, agent in self._agents.items():
            for key, held in mutable_parts(agent).items():
                if key not in first:
                    first[key] = (name, held)
                elif first[key][0] != name:
                    other, (path, value) = first[key]
                    yield (
                        f"the {type(value).__name__} that the agents {other!r} (at {path or '.'}) "
                        f"and {name!r} (at {held[0] or '.'}) share",
                        value,
                    )


def global_draws() -> tuple[Any, Any]:
    """The state of the global generators of `random` and `numpy.random`."""
    legacy = np.random.get_state()
    return random.getstate(), (legacy[1].tobytes(), legacy[2], legacy[3])  # type: ignore[index]
