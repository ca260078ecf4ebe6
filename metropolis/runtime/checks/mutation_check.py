"""Finds mutable state outside entities and agents, and its changes.

Attributes that begin with an underscore are skipped: they are an author's caches, which agents do
not save either.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from metropolis.names import cut, shortened
from metropolis.world.base import Agent, World
from metropolis.world.digest import Held, digest, mutable_parts

_DATA = (dict, list, set, deque, bytearray, np.ndarray, tuple, str, int, float, type(None))
"""Types of the attributes of classes and the globals of modules that are watched."""


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
        for key, (_, before) in self._known.items():
            value, after = now.get(key, (None, before))
            if after != before:
                yield f"{key[0]} changed, and is {cut(value)} now"
        self._known = now

    def _digests(self) -> dict[tuple[str, int | None], tuple[Any, int]]:
        """Description -> value and digest of everything that is watched.

        The key of a shared object also contains its identity, since another object may take its
        place.
        """
        named = {(what, None): value for what, value in self._named()}
        shared = {(what, id(value)): value for what, value in self._shared()}
        return {key: (value, digest(value)) for key, value in (named | shared).items()}

    def _named(self) -> Iterator[Held]:
        for name, value in vars(self._world).items():
            if not name.startswith("_"):
                yield f"the world's attribute {name!r}", value
        for kind in self._kinds:
            for name, value in vars(kind).items():
                if isinstance(value, _DATA) and not name.startswith("_"):
                    yield f"the class attribute {kind.__name__}.{name}", value
        for module in self._modules:
            for name, value in vars(sys.modules[module]).items():
                if isinstance(value, _DATA) and not name.startswith("_"):
                    yield f"the global {module}.{name}", value

    def _shared(self) -> Iterator[Held]:
        """The objects that several agents have, without those within another one of these."""
        values: dict[int, Any] = {}
        places: dict[int, list[str]] = {}
        for name, agent in self._agents.items():
            for key, (path, value) in mutable_parts(agent).items():
                values[key] = value
                places.setdefault(key, []).append(f"{name!r} (at {path or '.'})")
        within: set[int] = set()
        outer: list[int] = []
        for key, at in places.items():
            if len(at) > 1 and key not in within:
                outer.append(key)
                within |= mutable_parts(values[key]).keys() - {key}
        for key in outer:
            if key not in within:
                kind, at = type(values[key]).__name__, places[key]
                yield f"the {kind} that the agents {shortened(at, 2)} share", values[key]


def global_draws() -> tuple[Any, Any]:
    """The state of the global generators of `random` and `numpy.random`."""
    legacy: Any = np.random.get_state()  # its declared type differs between releases of numpy
    return random.getstate(), (legacy[1].tobytes(), legacy[2], legacy[3])
