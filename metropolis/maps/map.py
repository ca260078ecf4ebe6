"""A grid map: walls and named areas."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from metropolis.notebook.card import card, figure
from metropolis.notebook.map_drawing import draw_map
from metropolis.types import MetropolisError

Int32 = npt.NDArray[np.int32]
Tile = tuple[int, int]
_ID = re.compile("[0-9]{1,18}")
_WALL = 32125
"""The project's id of walls, which alone stops its people."""


@dataclass(frozen=True, eq=False)  # arrays have no single truth value
class GridMap:
    """Tiles of a walled grid world; arrays are (height, width), tile (x, y) is `[y, x]`.

    Raises MetropolisError if the arrays do not fit each other or the names.
    """

    name: str
    walls: npt.NDArray[np.bool_]
    arenas: Int32
    """Index into `arena_names`; 0 means outside of all arenas, and its name is ``""``."""
    arena_names: tuple[str, ...]
    """`sector: arena`; perception ends at an arena's border."""
    objects: Int32
    """Index into `object_names`; 0 means no object, and its name is ``""``."""
    object_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.walls.ndim != 2 or self.walls.dtype != np.bool_:
            raise MetropolisError(
                f"the map {self.name!r}: walls have the shape {self.walls.shape} and the type "
                f"{self.walls.dtype}; they should be a Boolean array of height x width"
            )
        for what, tiles, names in (
            ("arena", self.arenas, self.arena_names),
            ("object", self.objects, self.object_names),
        ):
            if tiles.shape != self.walls.shape:
                raise MetropolisError(
                    f"the map {self.name!r}: {what}s have the shape {tiles.shape}; it should be "
                    f"that of the walls, {self.walls.shape}"
                )
            if tiles.size and not 0 <= tiles.min() <= tiles.max() < len(names):
                raise MetropolisError(
                    f"the map {self.name!r}: {what}s are {tiles.min()} to {tiles.max()}; they "
                    f"should be indices into the {len(names)} {what}_names"
                )

    @property
    def width(self) -> int:
        """Number of tiles from west to east."""
        return int(self.walls.shape[1])

    @property
    def height(self) -> int:
        """Number of tiles from north to south."""
        return int(self.walls.shape[0])

    def drawing(self, bodies: npt.NDArray[np.floating] | None = None) -> str:
        """The map as SVG of bounded size, with `bodies` at (n, 2) positions."""
        return draw_map(self.walls, self.arenas, self.arena_names, bodies)

    def _repr_html_(self) -> str:
        facts = {
            "size": f"{self.width:,} x {self.height:,} tiles",
            "walls": f"{self.walls.mean():.0%} of the tiles",
            "places": f"{len(self.arena_names) - 1:,}",
            "objects": f"{len(self.object_names) - 1:,}",
        }
        caption = "Walls grey, named places in colour."
        return card("map", self.name, facts, [figure(self.drawing(), caption)])

    def contains(self, tile: Tile) -> bool:
        """Whether `tile` is on the map."""
        return 0 <= tile[0] < self.width and 0 <= tile[1] < self.height

    def free_tile(self, at: Tile) -> Tile:
        """The tile itself if it is free, else the nearest free one, of the same arena if any."""
        x, y = at
        if not self.walls[y, x]:
            return at
        free = ~self.walls & (self.arenas == self.arenas[y, x])
        return nearest(free if free.any() else ~self.walls, at)

    def walk(
        self, start: Iterable[float], goal: Iterable[float], longest: float = math.inf
    ) -> list[Tile] | None:
        """A shortest 4-neighbour path of tiles from `start` (exclusive) to `goal` (inclusive).

        None if no path has at most `longest` tiles. Positions between tiles count as the nearest
        tile. Ties are broken deterministically.
        """
        source, target = nearest_tile(start), nearest_tile(goal)
        came_from: dict[Tile, Tile] = {source: source}
        frontier, steps = [source], 0
        while frontier and target not in came_from and steps + 1 <= longest:
            reached = []
            for here in frontier:
                for tile in adjacent(here):
                    is_new = tile not in came_from and self.contains(tile)
                    if is_new and not self.walls[tile[1], tile[0]]:
                        came_from[tile] = here
                        reached.append(tile)
            frontier, steps = reached, steps + 1
        if target not in came_from:
            return None
        path: list[Tile] = []
        while target != source:
            path.append(target)
            target = came_from[target]
        return path[::-1]


def adjacent(tile: Tile) -> tuple[Tile, ...]:
    """The four tiles that share a side with `tile`, some of which may be off the map."""
    x, y = tile
    return (x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)


def nearest_tile(position: Iterable[float]) -> Tile:
    """The tile nearest to a position between tiles."""
    x, y = position
    return int(np.floor(x + 0.5)), int(np.floor(y + 0.5))


def nearest(among: npt.NDArray[np.bool_], at: Tile) -> Tile:
    """The tile of `among` with the shortest way to `at`, walls or not. There should be one."""
    return min(
        ((x, y) for y, x in np.argwhere(among).tolist()),
        key=lambda to: (abs(to[0] - at[0]) + abs(to[1] - at[1]), to),
    )


def read_genagent_map(
    directory: str | Path,
    renamed: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    unnamed: list[str] | None = None,
) -> GridMap:
    """Read a map of the Generative Agents project (Park et al. 2023) from its `matrix` folder.

    `maze_meta_info.json` gives the size. `maze/*_maze.csv` give a block id for every tile, row by
    row, on one line or one line per row; in a layer with negative ids these mean empty, and a 0 in
    the collision layer is a wall. `special_blocks/*_blocks.csv` name all ids except 0 and negative
    ones. `renamed` has the new names of some sectors, arenas and game objects, under `sector`,
    `arena` and `game_object`. With a list `unnamed`, other ids without a name also mean empty, as
    in the project's code, and sentences that say so are added to it. Raises `MetropolisError`
    naming the file, line and field.
    """
    new: Mapping[str, Mapping[str, str]] = defaultdict(dict, renamed)
    root = Path(directory)
    meta_file = root / "maze_meta_info.json"
    try:
        meta = json.loads(_read(meta_file))
        name, width, height = (meta[k] for k in ("world_name", "maze_width", "maze_height"))
        shape = int(height), int(width)
        str(name).encode()
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise MetropolisError(
            f"{meta_file}: cannot read the map's size ({error!r}); it should be a JSON object with"
            " world_name, maze_width and maze_height"
        ) from None
    if min(shape) < 1:
        raise MetropolisError(f"{meta_file}: the size is {shape}; both should be at least 1")
    arenas = {
        block: f"{new['sector'].get(sector, sector)}: {new['arena'].get(arena, arena)}"
        for block, (*_, sector, arena) in _blocks(root, "arena", 2).items()
    }
    objects = {
        block: new["game_object"].get(thing, thing)
        for block, (*_, thing) in _blocks(root, "game_object", 1).items()
    }
    arena_index, arena_names = _named(root, "arena", shape, arenas, unnamed)
    object_index, object_names = _named(root, "game_object", shape, objects, unnamed)
    return GridMap(
        name=str(name),
        walls=_walls(root, shape),
        arenas=arena_index,
        arena_names=arena_names,
        objects=object_index,
        object_names=object_names,
    )


def _walls(root: Path, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Tiles with an id are walls; if all tiles have one, only those with the project's own id."""
    ids = _matrix(root, "collision", shape)
    walls = ids >= 0 if ids.min() < 0 else ids > 0
    if walls.all():
        walls = ids == _WALL
    if walls.all():
        raise MetropolisError(
            f"{root / 'maze' / 'collision_maze.csv'}: has a wall on every tile; free tiles should "
            "have the id 0"
        )
    return walls


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MetropolisError(
            f"{path}: cannot be read ({reason}); a map is a folder with maze_meta_info.json,"
            " maze/ and special_blocks/"
        ) from None


def _matrix(root: Path, layer: str, shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """The ids of one layer, (height, width)."""
    path = root / "maze" / f"{layer}_maze.csv"
    ids = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        for column, cell in enumerate(map(str.strip, line.split(",")), 1):
            if not cell:
                continue
            if not _ID.fullmatch(cell.removeprefix("-")):
                raise MetropolisError(
                    f"{path}, line {number}, column {column}: {cell[:40]!r} should be a block id"
                )
            ids.append(int(cell))
    if len(ids) != shape[0] * shape[1]:
        raise MetropolisError(
            f"{path}: holds {len(ids)} ids; it should be {shape[1]} x {shape[0]} ="
            f" {shape[0] * shape[1]}, the size in maze_meta_info.json"
        )
    return np.array(ids, np.int64).reshape(shape)


def _blocks(root: Path, layer: str, names_min: int) -> dict[int, list[str]]:
    """Block id -> its path: world, sector, arena, object; without a number that follows it."""
    path = root / "special_blocks" / f"{layer}_blocks.csv"
    blocks = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        block, *names = (cell.strip() for cell in line.split(","))
        if not line.strip():
            continue
        if not _ID.fullmatch(block) or len(names) < names_min:
            raise MetropolisError(
                f"{path}, line {number}: {line.strip()[:80]!r} should be a block id and its names,"
                " separated by commas"
            )
        blocks[int(block)] = names[:-1] if len(names) > 3 and _ID.fullmatch(names[-1]) else names
    return blocks


def _named(
    root: Path,
    layer: str,
    shape: tuple[int, int],
    names: dict[int, str],
    unnamed: list[str] | None,
) -> tuple[Int32, tuple[str, ...]]:
    """The layer's ids as indices into the names that occur, 0 for empty, and these names."""
    ids = _matrix(root, layer, shape)
    found, index = np.unique(ids, return_inverse=True)
    if missing := sorted({int(i) for i in found if i > 0} - {*names}):
        sentence = (
            f"{root / 'special_blocks' / f'{layer}_blocks.csv'}: does not name the id "
            f"{', '.join(map(str, missing))} of maze/{layer}_maze.csv"
        )
        if unnamed is None:
            raise MetropolisError(f"{sentence}; it should name every id there but 0")
        unnamed.append(f"{sentence}, which then means empty")
    order = ["", *sorted({names[int(i)] for i in found if int(i) in names})]
    rank = {name: i for i, name in enumerate(order)}
    table = np.array([rank[names.get(int(i), "")] for i in found], np.int32)
    return table[index].reshape(ids.shape), tuple(order)
