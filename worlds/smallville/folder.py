"""A custom town as a folder: `town.json`, its map, and `residents.toml`, its residents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from metropolis.durable import reported
from metropolis.maps.map import GridMap
from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario
from metropolis.worlds.smallville.author import FUNCTIONS, author
from metropolis.worlds.smallville.geography import Atlas
from metropolis.worlds.smallville.profile import Profile, read_profiles
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.settings import table_of
from metropolis.worlds.smallville.story import Story
from metropolis.worlds.smallville.world import SmallVille

TOWN, RESIDENTS = "town.json", "residents.toml"
STEPS = 7 * 360
"""Seven hours: from six in the morning to one in the afternoon."""


class _Town(msgspec.Struct, forbid_unknown_fields=True):
    """`walls` marks walls with #; `arenas` and `objects` are rows of indices into their names."""

    format: Literal["metropolis-town"]
    version: Literal[1]
    name: str
    arena_names: list[str]
    object_names: list[str]
    walls: list[str]
    arenas: list[list[int]]
    objects: list[list[int]]


def make_from(folder: Path, *, agents: int | None = None, seed: int = 0) -> Scenario:  # noqa: ARG001
    """The town in `folder` with its first `agents` residents; None: all.

    Raises MetropolisError naming the file and what is wrong with it.
    """
    grid, profiles = read_town(folder / TOWN), read_profiles(folder / RESIDENTS)
    for profile in profiles:
        check_tile(grid, profile, folder / RESIDENTS)
    return populate(grid, profiles, agents, f"the town in {folder}")


def populate(
    grid: GridMap, profiles: Sequence[Profile], agents: int | None, whose: str
) -> Scenario:
    """A scenario of one town; `whose` names it in the error when it is too small."""
    count = len(profiles) if agents is None else agents
    if not 1 <= count <= len(profiles):
        raise MetropolisError(
            f"{whose} has {len(profiles)} residents, not {count}; "
            "largeville adds towns for more residents"
        )
    chosen = profiles[:count]
    atlas, world = Atlas(grid), SmallVille(grid, chosen)
    residents = [Resident(profile, atlas) for profile in chosen]
    return Scenario(world, residents, author, Story(world, chosen), STEPS, FUNCTIONS)


def write_town(folder: Path, grid: GridMap, profiles: Sequence[Profile]) -> None:
    """Write both files into `folder`, which is created if necessary."""
    town = _Town(
        "metropolis-town",
        1,
        grid.name,
        list(grid.arena_names),
        list(grid.object_names),
        ["".join("#" if wall else "." for wall in row) for row in grid.walls.tolist()],
        grid.arenas.tolist(),
        grid.objects.tolist(),
    )
    tables = (_table(_fields(profile)) for profile in profiles)
    contents = {TOWN: msgspec.json.encode(town), RESIDENTS: "\n".join(tables).encode()}
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)


def read_town(path: Path) -> GridMap:
    """The map of `town.json`. Raises MetropolisError naming the file."""
    try:
        town = msgspec.json.decode(path.read_bytes(), type=_Town)
        arenas, objects = np.array(town.arenas, np.int32), np.array(town.objects, np.int32)
        walls = np.array([[mark == "#" for mark in row] for row in town.walls])
    except OSError as error:
        raise MetropolisError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise MetropolisError(f"{path}: is not a town's map ({error})") from None
    if not walls.shape == arenas.shape == objects.shape or walls.ndim != 2:
        raise MetropolisError(
            f"{path}: walls, arenas and objects have the shapes {walls.shape}, {arenas.shape} and "
            f"{objects.shape}; they should be the same, rows by columns"
        )
    for index, names in ((arenas, town.arena_names), (objects, town.object_names)):
        if index.min() < 0 or index.max() >= len(names):
            raise MetropolisError(
                f"{path}: holds the index {index.max()} for {len(names)} names; it should be 0 for "
                "nothing, or that of a name"
            )
    return GridMap(
        town.name, walls, arenas, tuple(town.arena_names), objects, tuple(town.object_names)
    )


def check_tile(grid: GridMap, profile: Profile, path: Path) -> None:
    """Raise MetropolisError naming `path` unless the profile's tile is free."""
    x, y = profile.at
    inside = 0 <= x < grid.width and 0 <= y < grid.height
    if not inside or grid.walls[y, x]:
        raise MetropolisError(
            f"{path}: {profile.name} is at ({x}, {y}), which is not free; it should be a free "
            f"tile of the map, which is {grid.width} x {grid.height}"
        )


def _fields(profile: Profile) -> dict[str, Any]:
    """The fields that are not empty."""
    fields = asdict(profile) | {"settings": table_of(profile.settings)}
    return {name: value for name, value in fields.items() if value}


def _table(fields: Mapping[str, Any]) -> str:
    """A resident as TOML; nested tables come last."""
    inner = {key: value for key, value in fields.items() if isinstance(value, Mapping)}
    lines = ["[[resident]]"]
    lines += [f"{key} = {_value(value)}" for key, value in fields.items() if key not in inner]
    for key, table in inner.items():
        lines.append(f"[resident.{key}]")
        lines += [f"{_value(name)} = {_value(text)}" for name, text in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A value as TOML, whose texts, numbers and lists equal JSON's."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
