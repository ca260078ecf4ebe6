"""The search for bands of layers to recompute, coarse to fine.

The critical layers of a pair are contiguous, and a search over the first and the last layer finds
them (DroidSpeak §5.2, Fig. 10; NSDI'26). Every such band is a *cell*. The search evaluates a coarse
grid of cells, then the neighbours of the best cells on grids of half the width, down to one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from metropolis.reuse.plan import Band

CELLS_MAX = 150
"""Maximum number of cells of a grid of single layers that is searched at once."""


def grid(layers: int, width: int) -> list[Band]:
    """The bands whose ends are multiples of `width` layers, or the last layer."""
    ends = [*range(width, layers, width), layers]
    return [
        Band(first, end - 1) for first in range(0, layers, width) for end in ends if end > first
    ]


def first_width(layers: int, cells_max: int) -> int:
    """The smallest power of two whose grid has at most `cells_max` cells."""
    width = 1
    while len(grid(layers, width)) > max(1, cells_max) and width < layers:
        width *= 2
    return width


def best_by_size(quality: Mapping[Band, float]) -> list[Band]:
    """The Pareto front of number of layers and quality, by number of layers.

    Of equal bands, the one with the smallest first layer.
    """
    front: list[Band] = []
    for band in sorted(quality, key=lambda band: (len(band), -quality[band], band)):
        if not front or quality[band] > quality[front[-1]]:
            front.append(band)
    return front


def neighbours(bands: Collection[Band], layers: int, width: int) -> list[Band]:
    """The bands whose first and end layers are at most `width` from those of one of `bands`."""
    found = {
        Band(first, last)
        for band in bands
        for first in range(band.first - width, band.first + width + 1, width)
        for last in range(band.last - width, band.last + width + 1, width)
        if 0 <= first <= last < layers
    }
    return sorted(found)


def search(
    layers: int, evaluate: Callable[[Sequence[Band]], Sequence[float]], cells_max: int = CELLS_MAX
) -> dict[Band, float]:
    """The quality of the bands that were evaluated, among them the whole of the layers.

    `evaluate` returns the quality of each of the bands it is given; it is called once for each
    width of the grid.
    """
    quality: dict[Band, float] = {}
    for bands in _levels(layers, cells_max, quality):
        quality.update(zip(bands, evaluate(bands), strict=True))
    return quality


def _levels(layers: int, cells_max: int, quality: Mapping[Band, float]) -> Iterator[list[Band]]:
    """The bands of each level that are not in `quality`, which the caller completes."""
    width = first_width(layers, cells_max)
    yield grid(layers, width)
    while width > 1:
        width //= 2
        found = neighbours(best_by_size(quality), layers, width)
        yield [band for band in found if band not in quality]
