"""Spaces for language that Gymnasium lacks: free text, choices, optional values, records.

They nest with Gymnasium's spaces (`Dict`, `Sequence`, `Box`, …), and are seeded, sampled, compared
and pickled like them. Samples are plain Python values, not NumPy scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import gymnasium
import numpy as np

from metropolis.names import cut
from metropolis.types import MetropolisError

T = TypeVar("T")
_WORDS = ("a", "bench", "garden", "hello", "I", "letter", "of", "saw", "the", "today", "was", "we")


def misfit(name: str, value: Any, space: gymnasium.Space[Any]) -> str:
    """A sentence about the first part of `value` that is outside its part of `space`.

    `name` is the name of `value` in the sentence.
    """
    parts: list[tuple[str, Any, gymnasium.Space[Any]]] = []
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(value, Mapping):
        if value.keys() != space.keys():
            return f"{name} has the keys {[*value]}; its space has {[*space]}"
        parts = [(f"{name}[{key!r}]", value[key], inner) for key, inner in space.items()]
    elif isinstance(space, gymnasium.spaces.Tuple) and isinstance(value, tuple):
        if len(value) != len(space):
            return f"{name} has {len(value)} items; its space has {len(space)}"
        parts = [(f"{name}[{i}]", *both) for i, both in enumerate(zip(value, space, strict=True))]
    elif isinstance(space, gymnasium.spaces.Sequence) and isinstance(value, tuple):
        parts = [(f"{name}[{i}]", item, space.feature_space) for i, item in enumerate(value)]
    elif isinstance(space, Record) and isinstance(value, space.kind):
        parts = [(f"{name}.{of}", getattr(value, of), one) for of, one in space.spaces.items()]
    elif isinstance(space, Maybe) and value is not None:
        parts = [(name, value, space.space)]
    for part, inside, of in parts:
        if inside not in of:
            return misfit(part, inside, of)
    return f"{name} is {cut(value)}, which is not in the space {space!s:.200}"


class _Plain(gymnasium.Space[T]):
    """A space of plain Python values, which have no array form."""

    @property
    def is_np_flattenable(self) -> bool:
        """See `gymnasium.Space`."""
        return False


class FreeText(_Plain[str]):
    """A text of at most `max_length` characters, in any script; samples are words."""

    def __init__(self, max_length: int = 2000, seed: int | None = None) -> None:
        super().__init__(None, None, seed)
        self.max_length = max_length

    def sample(self, mask: None = None, probability: None = None) -> str:  # noqa: ARG002
        """Return one to eight words, truncated to the maximum length."""
        words = self.np_random.choice(_WORDS, size=self.np_random.integers(1, 9))
        return " ".join(map(str, words))[: self.max_length]

    def contains(self, x: Any) -> bool:
        """See `gymnasium.Space.contains`."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"FreeText({self.max_length})"


class Choice(_Plain[T]):
    """One of `values`, as in ``Choice(["north", "south", "stay"])``."""

    def __init__(self, values: Sequence[T], seed: int | None = None) -> None:
        super().__init__(None, None, seed)
        if not values:
            raise MetropolisError("the space Choice has no values; it needs at least one")
        self.values = tuple(values)

    def sample(self, mask: None = None, probability: None = None) -> T:  # noqa: ARG002
        """Return one of the values, uniformly at random."""
        return self.values[int(self.np_random.integers(len(self.values)))]

    def contains(self, x: Any) -> bool:
        """See `gymnasium.Space.contains`."""
        try:
            return not isinstance(x, np.ndarray) and x in self.values
        except ValueError:  # there is an array within x
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self.values == other.values

    def __repr__(self) -> str:
        return f"Choice({list(self.values)!r})"


class Maybe(_Plain[T | None]):
    """An element of `space`, or None."""

    def __init__(self, space: gymnasium.Space[T], seed: int | None = None) -> None:
        self.space = space
        super().__init__(None, None, seed)

    def sample(self, mask: None = None, probability: None = None) -> T | None:  # noqa: ARG002
        """Return None with probability 0.5, otherwise a sample of the inner space."""
        return None if self.np_random.random() < 0.5 else _plain(self.space.sample())

    def seed(self, seed: int | None = None) -> Any:
        """Seed this space and the inner one; see `gymnasium.Space.seed`."""
        return super().seed(seed), self.space.seed(seed)

    def contains(self, x: Any) -> bool:
        """See `gymnasium.Space.contains`."""
        return x is None or x in self.space

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Maybe) and self.space == other.space

    def __repr__(self) -> str:
        return f"Maybe({self.space!r})"


class Record(_Plain[T]):
    """Instances of the dataclass `kind`, with a space per field: ``Record(Say, to=…, words=…)``.

    Fields without a space keep their default and are not checked.
    """

    def __init__(
        self, kind: type[T], /, seed: int | None = None, **spaces: gymnasium.Space[Any]
    ) -> None:
        if not is_dataclass(kind):
            raise MetropolisError(f"{kind!r} is not a dataclass; the space Record requires one")
        if unknown := set(spaces) - {field.name for field in fields(kind)}:
            raise MetropolisError(
                f"{kind.__name__} has no field {min(unknown)!r}; its fields are "
                f"{', '.join(field.name for field in fields(kind))}"
            )
        self.kind = kind
        self.spaces = gymnasium.spaces.Dict(spaces)
        super().__init__(None, None, seed)

    def sample(self, mask: None = None, probability: None = None) -> T:  # noqa: ARG002
        """Return an instance with sampled fields."""
        return self.kind(**_plain(self.spaces.sample()))

    def seed(self, seed: int | None = None) -> Any:
        """Seed the spaces of the fields; see `gymnasium.Space.seed`."""
        return self.spaces.seed(seed)

    def contains(self, x: Any) -> bool:
        """See `gymnasium.Space.contains`."""
        return isinstance(x, self.kind) and all(
            getattr(x, name) in space for name, space in self.spaces.items()
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.kind is other.kind and self.spaces == other.spaces

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={space!r}" for name, space in self.spaces.items())
        return f"Record({self.kind.__name__}, {inner})"


def _plain(value: Any) -> Any:
    """`value` with NumPy scalars converted to Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value
