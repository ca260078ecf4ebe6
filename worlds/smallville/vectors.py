"""Vectors of which most numbers are 0, as those of texts are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from metropolis.worlds.smallville.embedding import DIMENSIONS, Vector

_FIRST_CAPACITY = 512
GROWTH = 4
"""Full columns grow by a GROWTH-th of their length. They take most of a resident's memory, so they
grow slowly."""


class Vectors:
    """Vectors of DIMENSIONS numbers, of which zeros are not stored."""

    def __init__(self) -> None:
        self._count = self._filled = 0
        self._places = np.zeros(_FIRST_CAPACITY, np.intp)
        """The index of each stored number in the concatenation of all vectors."""
        self._numbers = np.zeros(_FIRST_CAPACITY, np.float32)

    def append(self, vector: Vector) -> None:
        """Add a vector."""
        (found,) = vector.nonzero()
        filled = slice(self._filled, self._filled + len(found))
        while filled.stop > len(self._places):
            self._places, self._numbers = grown(self._places), grown(self._numbers)
        self._places[filled] = found + self._count * DIMENSIONS
        self._numbers[filled] = vector[found]
        self._count, self._filled = self._count + 1, filled.stop

    def products(self, other: Vector) -> Vector:
        """The scalar product of each vector with `other`."""
        numbers = np.zeros(self._count * DIMENSIONS, np.float32)
        numbers[self._places[: self._filled]] = self._numbers[: self._filled]
        products: Vector = numbers.reshape(-1, DIMENSIONS) @ other
        return products


def grown(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of `column` with more rows."""
    more = np.zeros((len(column) // GROWTH, *column.shape[1:]), column.dtype)
    return np.concatenate([column, more])
