"""Areas and objects of a map as geometry, with a spatial index.

A tile (x, y) is the unit square centred on (x, y), so a position between tiles belongs to the
nearest tile. Distances are Euclidean, from a position to the nearest edge of an area, and 0 inside
it. They ignore walls; `GridMap.walk` and the metrics measure walks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import shapely
from rtree.index import Index
from shapely.geometry.base import BaseGeometry

from metropolis.maps.map import GridMap, Int32, Tile, adjacent, nearest_tile
from metropolis.types import MetropolisError, Position


@dataclass(frozen=True)
class Area:
    """A named part of the map: a whole arena, or one object."""

    name: str
    """`sector: arena`, or the name of the object."""
    tiles: tuple[Tile, ...]
    """Its tiles, from north to south, then from west to east."""
    geometry: BaseGeometry
    """The union of the tiles: one or more polygons."""

    def distance(self, position: Position) -> float:
        """The distance from `position`; 0 inside."""
        return float(shapely.distance(self.geometry, shapely.Point(position)))


class Areas:
    """The arenas and objects of `grid`. Adjacent tiles with the same object name are one object."""

    def __init__(self, grid: GridMap) -> None:
        self._grid = grid
        self.arenas = {
            name: _area(name, tiles)
            for number, name in enumerate(grid.arena_names)
            if number and (tiles := _tiles_of(grid.arenas, number))
        }
        self.objects = tuple(
            _area(name, tiles)
            for number, name in enumerate(grid.object_names)
            if number
            for tiles in touching(_tiles_of(grid.objects, number))
        )

    def arena(self, name: str) -> Area:
        """The arena `name`. Raises MetropolisError when it does not exist."""
        if name not in self.arenas:
            raise MetropolisError(
                f"the map {self._grid.name!r} has no arena {name!r}; there are "
                f"{', '.join(map(repr, self.arenas))}"
            )
        return self.arenas[name]

    def arena_at(self, position: Position) -> Area | None:
        """The arena that contains `position`; None outside of all arenas."""
        x, y = tile = nearest_tile(position)
        if not self._grid.contains(tile):
            return None
        number = int(self._grid.arenas[y, x])
        return self.arenas[self._grid.arena_names[number]] if number else None

    def arenas_within(self, position: Position, distance: float) -> list[Area]:
        """The arenas at most `distance` away, ordered by distance, then by name."""
        return self._arena_index.within(position, distance)

    def objects_within(
        self, position: Position, distance: float, name: str | None = None
    ) -> list[Area]:
        """The objects at most `distance` away, the nearest first; `name` None: all names."""
        index = self._object_index if name is None else self._index_of(name)
        return index.within(position, distance)

    def nearest_object(self, position: Position, name: str | None = None) -> Area:
        """The nearest object named `name`. Raises MetropolisError when the map has none."""
        index = self._object_index if name is None else self._index_of(name)
        return index.nearest(position)

    @cached_property
    def _arena_index(self) -> _SpatialIndex:
        return _SpatialIndex(list(self.arenas.values()))

    @cached_property
    def _object_index(self) -> _SpatialIndex:
        if not self.objects:
            raise MetropolisError(f"the map {self._grid.name!r} has no objects")
        return _SpatialIndex(self.objects)

    @cached_property
    def _indices(self) -> dict[str, _SpatialIndex]:
        named = defaultdict(list)
        for area in self.objects:
            named[area.name].append(area)
        return {name: _SpatialIndex(areas) for name, areas in named.items()}

    def _index_of(self, name: str) -> _SpatialIndex:
        if name not in self._indices:
            raise MetropolisError(
                f"the map {self._grid.name!r} has no object {name!r}; there are "
                f"{', '.join(map(repr, self._indices))}"
            )
        return self._indices[name]


class _SpatialIndex:
    """An R-tree over the bounding boxes of areas; results are exact."""

    def __init__(self, areas: Sequence[Area]) -> None:
        self._areas = areas
        self._tree = Index(
            ((number, area.geometry.bounds, None) for number, area in enumerate(areas))
            if areas
            else None
        )

    def within(self, position: Position, distance: float) -> list[Area]:
        found = self._measured(position, distance)
        return [area for _, _, _, area in sorted(found, key=lambda item: item[:3])]

    def nearest(self, position: Position) -> Area:
        # The area with the nearest bounding box gives an upper bound of the smallest distance.
        guess = next(iter(self._tree.nearest((*position, *position), 1)))
        bound = self._areas[guess].distance(position) * (1 + 1e-12)  # the box below is rounded
        return self.within(position, bound)[0]

    def _measured(
        self, position: Position, distance: float
    ) -> Iterator[tuple[float, str, tuple[Tile, ...], Area]]:
        x, y = position
        box = (x - distance, y - distance, x + distance, y + distance)
        for number in self._tree.intersection(box):
            area = self._areas[number]
            if (far := area.distance(position)) <= distance:
                yield far, area.name, area.tiles, area


def _area(name: str, tiles: list[Tile]) -> Area:
    corners = np.array(tiles, float).reshape(-1, 2)
    squares = shapely.box(*(corners - 0.5).T, *(corners + 0.5).T)
    return Area(name, tuple(tiles), shapely.union_all(squares))


def _tiles_of(layer: Int32, number: int) -> list[Tile]:
    return [(int(x), int(y)) for y, x in np.argwhere(layer == number)]


def touching(tiles: list[Tile]) -> Iterator[list[Tile]]:
    """The groups of tiles that share sides."""
    left = dict.fromkeys(tiles)
    while left:
        group = [left.popitem()[0]]
        for here in group:  # the list grows during the iteration
            for tile in adjacent(here):
                if tile in left:
                    del left[tile]
                    group.append(tile)
        yield sorted(group, key=lambda tile: (tile[1], tile[0]))
