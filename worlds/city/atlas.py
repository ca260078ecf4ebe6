"""Residents' knowledge of the city's map: the way from town to town, and the names of places.

A way leads over the road to the next town, or by train; in a town it is a shortest walk. All towns
share what has been computed for one, so the cost does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property

from metropolis.worlds.city.terrain import (
    EAST,
    ROAD_ROWS,
    TOWNS,
    WEST,
    Railway,
    Tile,
    named,
    parts,
    town_map,
)
from metropolis.worlds.smallville.geography import MOVES, Atlas

_MOVE_OF = {offset: move for move, offset in MOVES.items()}
_ROAD = ROAD_ROWS[len(ROAD_ROWS) // 2]


class CityAtlas(Atlas):
    """A map of `towns` towns; `of` returns a resident's."""

    def __init__(self, towns: int) -> None:
        super().__init__(town_map())
        self._width = self.grid.width
        town = Atlas(self.grid)
        self._towns = [town.moved(number * self._width) for number in range(towns)]
        self._numbers = {TOWNS[number]: number for number in range(towns)}
        self._names: list[dict[str, str]] = [{"": ""} for _ in range(towns)]
        self._railway, self._spot, self._rides = Railway(), 0, False
        self.places  # noqa: B018 -- computed before residents copy the atlas

    def of(self, number: int, rides: bool) -> CityAtlas:
        """Resident `number`'s, who goes to neighbouring towns by train if `rides`, else on foot."""
        atlas = copy(self)
        atlas._spot, atlas._rides = number, rides
        return atlas

    @cached_property
    def places(self) -> Mapping[str, Mapping[str, Mapping[str, tuple[Tile, ...]]]]:
        """See `Atlas.places`."""
        return {
            named(sector, TOWNS[number]): arenas
            for number, town in enumerate(self._towns)
            for sector, arenas in town.places.items()
        }

    def within(self, place: str) -> tuple[str, ...]:
        """See `Atlas.within`."""
        bare, town = parts(place)
        if town not in self._numbers:
            return ()
        number = self._numbers[town]
        return tuple(self._named(number, one) for one in self._towns[number].within(bare))

    def tiles(self, address: str) -> tuple[Tile, ...]:
        """See `Atlas.tiles`."""
        bare, town = parts(address)
        return self._towns[self._numbers[town]].tiles(bare) if town in self._numbers else ()

    def arena(self, tile: Tile) -> str:
        """See `Atlas.arena`."""
        number = self._town(tile)
        return self._named(number, self._towns[number].arena(tile))

    def thing(self, tile: Tile) -> str:
        """See `Atlas.thing`."""
        number = self._town(tile)
        return self._named(number, self._towns[number].thing(tile))

    def things_near(self, tile: Tile, radius: int) -> Iterator[tuple[int, Tile, str]]:
        """See `Atlas.things_near`."""
        number = self._town(tile)
        for distance, at, thing in self._towns[number].things_near(tile, radius):
            yield distance, at, self._named(number, thing)

    def sights(self, tile: Tile, radius: int) -> tuple[str, ...]:
        """See `Atlas.sights`; passengers see no places."""
        if self.carried(tile):
            return ()
        number = self._town(tile)
        return tuple(self._named(number, one) for one in self._towns[number].sights(tile, radius))

    def carried(self, tile: Tile) -> bool:
        """Whether a tile is on a track."""
        return self._railway.direction(tile) != 0

    def walk(self, here: Tile, there: Tile) -> list[Tile]:
        """The tiles of the way, both ends included, as if trains left at once; empty: no path."""
        tiles = [here]
        while tiles[-1] != there:
            after = self._next(tiles[-1], there)
            if after == tiles[-1]:
                return []
            tiles.append(after)
        return tiles

    def toward(self, here: Tile, there: Tile) -> str:
        """The first move of the way; "stay" if there is no path, and for those who are carried."""
        x, y = self._next(here, there)
        move = _MOVE_OF[x - here[0], y - here[1]]
        return "stay" if self.carried(here) and move in ("east", "west") else move

    def _next(self, here: Tile, there: Tile) -> Tile:
        """The tile after `here`; `here` itself if there is no path."""
        town, goal = self._town(here), self._town(there)
        if side := self._railway.direction(here):
            platform = self._railway.platform(here)
            arrived = (goal - town) * side <= 0
            return platform if arrived and platform else (here[0] + side, here[1])
        if town != goal:
            side = EAST if goal > town else WEST
            if self._rides or abs(goal - town) > 1:
                there, beyond = self._railway.boarding(town, side, self._spot)
            else:
                edge = (town + (side == EAST)) * self._width
                there, beyond = sorted(((edge - 1, _ROAD), (edge, _ROAD)), reverse=side == WEST)
            if here == there:
                return beyond
        dx, dy = MOVES[self._towns[town].toward(here, there)]
        return here[0] + dx, here[1] + dy

    def _town(self, tile: Tile) -> int:
        return tile[0] // self._width

    def _named(self, number: int, place: str) -> str:
        """The city's name for a place of a town."""
        names = self._names[number]
        if place not in names:
            names[place] = named(place, TOWNS[number])
        return names[place]
