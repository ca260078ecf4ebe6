"""From distributions of remaining latency to an order of functions (Kairos §5.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis.policy.kairos.latency import Quantiles

ITERATIONS = 200
TOLERANCE = 1e-9

Floats = npt.NDArray[np.float64]


def distances(quantiles: Floats) -> Floats:
    """(n, n): the Wasserstein distances of n distributions; `quantiles` is (n, LEVELS)."""
    found = np.zeros((len(quantiles), len(quantiles)))
    for level in quantiles.T:  # one at a time: (n, n, LEVELS) would not fit for thousands
        found += np.abs(level[:, None] - level)
    found /= quantiles.shape[1]
    return found


def embedded(distance: Floats) -> Floats:
    """(n,): classical multidimensional scaling of an (n, n) matrix to one dimension.

    The first eigenvector of the doubly centred squares, by power iteration.
    """
    squares = distance**2

    def centred(vector: Floats) -> Floats:
        vector = vector - vector.mean()
        product = -0.5 * (squares @ vector)
        return np.asarray(product - product.mean())

    vector = centred(np.random.default_rng(0).normal(size=len(distance)))
    length = 0.0
    for _ in range(ITERATIONS):
        norm = np.linalg.norm(vector)
        if norm == 0:
            return np.zeros(len(distance))
        before, vector = length, centred(vector / norm)
        length = float(np.linalg.norm(vector))
        if abs(length - before) <= TOLERANCE * length:
            break
    return np.asarray(vector / np.sqrt(length)) if length else np.zeros(len(distance))


def distance_from_zero(quantiles: list[Quantiles]) -> Floats:
    """(n,): how far each function is from the ideal one that leaves nothing to wait for.

    That one, the anchor, gives the coordinates their direction.
    """
    anchored = np.vstack([np.zeros_like(quantiles[0]), *quantiles])
    at = embedded(distances(anchored))
    away: Floats = np.abs(at[1:] - at[0])
    return away
