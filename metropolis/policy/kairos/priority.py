"""From distributions of remaining latency to an order of functions (Kairos §5.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis.policy.kairos.latency import Quantiles

ITERATIONS = 200
TOLERANCE = 1e-9
ROWS = 32
"""Rows compared at a time, so that the operands stay in the CPU cache."""

Floats = npt.NDArray[np.float64]


def distances(quantiles: Floats) -> Floats:
    """(n, n): the Wasserstein distances of n distributions; `quantiles` is (n, LEVELS)."""
    count = len(quantiles)
    found = np.empty((count, count))
    levels = np.ascontiguousarray(quantiles.T)
    for first in range(0, count, ROWS):
        rows = slice(first, first + ROWS)
        total = np.zeros((len(quantiles[rows]), count - first))
        apart = np.empty_like(total)
        for level in levels:
            np.subtract(level[rows, None], level[first:], out=apart)
            np.abs(apart, out=apart)
            total += apart
        total /= len(levels)
        found[rows, first:] = total
        found[first:, rows] = total.T
    return found


def embedded(squares: Floats) -> Floats:
    """(n,): classical multidimensional scaling to one dimension, from (n, n) squared distances.

    The first eigenvector of the doubly centred squares, by power iteration.
    """

    def centred(vector: Floats) -> Floats:
        vector = vector - vector.mean()
        product = -0.5 * (squares @ vector)
        return np.asarray(product - product.mean())

    vector = centred(np.random.default_rng(0).normal(size=len(squares)))
    length = 0.0
    for _ in range(ITERATIONS):
        norm = np.linalg.norm(vector)
        if norm == 0:
            return np.zeros(len(squares))
        before, vector = length, centred(vector / norm)
        length = float(np.linalg.norm(vector))
        if abs(length - before) <= TOLERANCE * length:
            break
    return np.asarray(vector / np.sqrt(length)) if length else np.zeros(len(squares))


def distance_from_zero(quantiles: list[Quantiles]) -> Floats:
    """(n,): the distance of each function from the ideal one, whose remaining latency is zero.

    The ideal function is the anchor that orients the coordinates.
    """
    anchored = np.vstack([np.zeros_like(quantiles[0]), *quantiles])
    squares = distances(anchored)
    np.square(squares, out=squares)  # in place: large for thousands of functions
    at = embedded(squares)
    away: Floats = np.abs(at[1:] - at[0])
    return away
