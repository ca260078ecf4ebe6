"""The map of a world, as the page draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from metropolis.maps.areas import touching
from metropolis.maps.map import GridMap, Int32, Tile

Box = dict[str, Any]
"""A name, and the smallest and largest tiles of a rectangle: x0, y0, x1, y1."""


def map_of(grid: GridMap) -> dict[str, Any]:
    """Size, walls, areas and objects of a map.

    `walls` has for every row the lengths of its runs of open tiles, walls, open tiles, and so on;
    the first may be 0.
    """
    arenas = _tiles_by_name(grid.arenas, grid.arena_names)
    objects = _tiles_by_name(grid.objects, grid.object_names)
    return {
        "width": grid.width,
        "height": grid.height,
        "walls": [_runs(row) for row in grid.walls],
        "areas": [_box(name, tiles) for name, tiles in arenas],
        "objects": [_box(name, group) for name, tiles in objects for group in touching(tiles)],
    }


def _runs(row: npt.NDArray[np.bool_]) -> list[int]:
    bounds = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return [0, *lengths] if row[0] else lengths


def _tiles_by_name(layer: Int32, names: Sequence[str]) -> Iterator[tuple[str, list[Tile]]]:
    """The tiles of every number of the layer but 0, by row."""
    ys, xs = np.nonzero(layer)
    numbers = layer[ys, xs]
    order = np.argsort(numbers, kind="stable")
    bounds = np.flatnonzero(np.diff(numbers[order], prepend=0))
    tiles = list(zip(xs[order].tolist(), ys[order].tolist(), strict=True))
    for begin, end in pairwise([*bounds.tolist(), len(tiles)]):
        yield names[int(numbers[order[begin]])], tiles[begin:end]


def _box(name: str, tiles: Sequence[Tile]) -> Box:
    xs, ys = zip(*tiles, strict=True)
    return {"name": name, "x0": min(xs), "y0": min(ys), "x1": max(xs), "y1": max(ys)}
