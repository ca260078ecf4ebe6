"""Alderbrook, the bundled town, which `town.toml` describes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from metropolis.maps.map import GridMap, Tile, adjacent


@dataclass(frozen=True)
class Place:
    """A building or a park; tiles are (x, y)."""

    name: str
    kinds: tuple[str, ...]
    """A subset of `home`, `work`, `meal`, `errand`."""
    staff: int
    """The number of people who work here."""
    spots: tuple[Tile, ...]
    """Tiles of objects, at which residents act; without beds."""
    beds: tuple[Tile, ...]


@dataclass(frozen=True)
class Town:
    """A map, its places and its residents."""

    map: GridMap
    places: tuple[Place, ...]
    residents: tuple[str, ...]
    """Names; resident i sleeps in bed i of `beds`."""

    def of_kind(self, kind: str) -> tuple[Place, ...]:
        """The places of one kind."""
        return tuple(place for place in self.places if kind in place.kinds)

    @property
    def beds(self) -> tuple[tuple[Place, Tile], ...]:
        """Every bed, with its home."""
        return tuple((place, bed) for place in self.places for bed in place.beds)


@cache
def alderbrook() -> Town:
    """The 140 x 100 town of `town.toml`; walls enclose it on all sides."""
    drawing = tomllib.loads((files("metropolis.maps") / "town.toml").read_text("utf-8"))
    walls = np.ones((drawing["height"], drawing["width"]), np.bool_)
    walls[1:-1, 1:-1] = False
    arenas, objects = np.zeros(walls.shape, np.int32), np.zeros(walls.shape, np.int32)
    arena_names, letters = [""], list(drawing["objects"])
    places = []
    for entry in drawing["places"]:
        plan = drawing["plans"][entry["plan"]]
        left, top = entry["at"]
        marks = {
            (left + dx, top + dy): mark
            for dy, row in enumerate(plan["plan"].strip("\n").split("\n"))
            for dx, mark in enumerate(row)
            if mark != " "
        }
        for (x, y), mark in marks.items():
            walls[y, x] = mark == "#"
            objects[y, x] = letters.index(mark) + 1 if mark in letters else 0
            if mark in plan["rooms"]:
                arena_names.append(f"{entry['name']}: {plan['rooms'][mark]}")
                for room_x, room_y in _room(marks, (x, y)):
                    arenas[room_y, room_x] = len(arena_names) - 1
        spots = tuple(tile for tile, mark in marks.items() if mark in letters and mark != "b")
        beds = tuple(tile for tile, mark in marks.items() if mark == "b")
        places.append(
            Place(entry["name"], tuple(entry["kinds"]), entry.get("staff", 0), spots, beds)
        )
    grid = GridMap(
        drawing["name"],
        walls,
        arenas,
        tuple(arena_names),
        objects,
        ("", *drawing["objects"].values()),
    )
    return Town(grid, tuple(places), tuple(drawing["residents"]))


def _room(marks: dict[Tile, str], start: Tile) -> set[Tile]:
    """The tiles of a plan reachable from `start` without crossing a wall or a door."""
    room, border = {start}, [start]
    while border:
        for tile in adjacent(border.pop()):
            if tile not in room and marks.get(tile, "#") not in "#+":
                room.add(tile)
                border.append(tile)
    return room
