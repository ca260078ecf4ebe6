"""The map or the graph of a world, as the page draws it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

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
        "walls": [_runs(row) for row in grid.walls.tolist()],
        "areas": [_box(name, tiles) for name, tiles in arenas],
        "objects": [_box(name, group) for name, tiles in objects for group in touching(tiles)],
    }


def graph_of(neighbours: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The edges of a graph, each once."""
    return {"edges": [(a, b) for a, of in enumerate(neighbours) for b in of if a < b]}


def _runs(row: Sequence[bool]) -> list[int]:
    lengths, is_wall = [0], False
    for tile in row:
        if tile != is_wall:
            lengths.append(0)
            is_wall = tile
        lengths[-1] += 1
    return lengths


def _tiles_by_name(layer: Int32, names: Sequence[str]) -> Iterable[tuple[str, list[Tile]]]:
    tiles: defaultdict[int, list[Tile]] = defaultdict(list)
    for y, x in np.argwhere(layer).tolist():
        tiles[int(layer[y, x])].append((x, y))
    return ((names[number], of) for number, of in sorted(tiles.items()))


def _box(name: str, tiles: Sequence[Tile]) -> Box:
    xs, ys = zip(*tiles, strict=True)
    return {"name": name, "x0": min(xs), "y0": min(ys), "x1": max(xs), "y1": max(ys)}
