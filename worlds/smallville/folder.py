"""A custom town as a folder: `town.json`, its map, `residents.toml`, its residents, and perhaps
`pasts.json`, what they have lived through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from metropolis.durable import reported
from metropolis.maps.map import GridMap
from metropolis.names import cut
from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario
from metropolis.worlds.smallville.author import FUNCTIONS, author
from metropolis.worlds.smallville.geography import Atlas, Tile
from metropolis.worlds.smallville.past import PASTS, Past, read_pasts
from metropolis.worlds.smallville.profile import Profile, read_profiles
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.settings import table_of
from metropolis.worlds.smallville.story import Story
from metropolis.worlds.smallville.world import START, SmallVille

TOWN, RESIDENTS = "town.json", "residents.toml"
STEPS = 7 * 360
"""Seven hours: from six in the morning to one in the afternoon."""
END_HOUR, HOURS_MIN = 13, 7
"""A town that begins at another hour runs to the END_HOUR that is at least HOURS_MIN away."""


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
    start: datetime = START
    """The time at which step 0 begins."""


def make_from(folder: Path, *, agents: int | None = None, seed: int = 0) -> Scenario:  # noqa: ARG001
    """The town in `folder` with its first `agents` residents; None: all.

    Raises MetropolisError naming the file and what is wrong with it.
    """
    (grid, start), profiles = read_town(folder / TOWN), read_profiles(folder / RESIDENTS)
    pasts = read_pasts(folder / PASTS)
    for profile in profiles:
        check_tile(grid, profile.name, profile.at, folder / RESIDENTS)
    for name, past in pasts.items():
        if past.at is not None:
            check_tile(grid, name, past.at, folder / PASTS)
        if past.activity is not None:
            check_tile(grid, f"the goal of {name}", past.activity.goal, folder / PASTS)
    return populate(grid, profiles, agents, f"the town in {folder}", start, pasts)


def populate(
    grid: GridMap,
    profiles: Sequence[Profile],
    agents: int | None,
    whose: str,
    start: datetime = START,
    pasts: Mapping[str, Past] = MappingProxyType({}),
) -> Scenario:
    """A scenario of one town; `whose` names it in the error when it is too small."""
    count = len(profiles) if agents is None else agents
    if not 1 <= count <= len(profiles):
        raise MetropolisError(
            f"{whose} has {len(profiles)} residents, not {count}; "
            "largeville adds towns for more residents"
        )
    chosen = profiles[:count]
    atlas, world = Atlas(grid), SmallVille(grid, chosen, start=start, pasts=pasts)
    residents = [
        Resident(
            profile,
            atlas,
            first_day=start.date(),
            now_s=world.clock_s(0),
            past=pasts.get(profile.name),
        )
        for profile in chosen
    ]
    hours = (END_HOUR - start.hour - HOURS_MIN) % 24 + HOURS_MIN
    steps = round((hours * 3600 - start.minute * 60 - start.second) / world.step_s)
    return Scenario(world, residents, author, Story(world, chosen), steps, FUNCTIONS)


def write_town(
    folder: Path,
    grid: GridMap,
    profiles: Sequence[Profile],
    start: datetime,
    pasts: Mapping[str, Past],
) -> None:
    """Write the files into `folder`, which is created if necessary."""
    town = _Town(
        "metropolis-town",
        1,
        grid.name,
        list(grid.arena_names),
        list(grid.object_names),
        ["".join("#" if wall else "." for wall in row) for row in grid.walls.tolist()],
        grid.arenas.tolist(),
        grid.objects.tolist(),
        start,
    )
    tables = (_table(_fields(profile)) for profile in profiles)
    contents = {TOWN: msgspec.json.encode(town), RESIDENTS: "\n".join(tables).encode()}
    if pasts:
        contents[PASTS] = msgspec.json.encode(pasts)
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)


def read_town(path: Path) -> tuple[GridMap, datetime]:
    """The map of `town.json` and the time of step 0. Raises MetropolisError naming the file."""
    try:
        town = msgspec.json.decode(path.read_bytes(), type=_Town)
        grid = GridMap(
            town.name,
            np.array([[mark == "#" for mark in row] for row in town.walls]),
            np.array(town.arenas, np.int32),
            tuple(town.arena_names),
            np.array(town.objects, np.int32),
            tuple(town.object_names),
        )
    except OSError as error:
        raise MetropolisError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, OverflowError, MetropolisError) as error:
        raise MetropolisError(f"{path}: is not a town's map ({error})") from None
    for name in town.arena_names[1:]:
        if ": " not in name:
            raise MetropolisError(
                f"{path}: has the arena name {cut(name)}; it should be `sector: arena`"
            )
    return grid, town.start.replace(tzinfo=None)


def check_tile(grid: GridMap, name: str, at: Tile, path: Path) -> None:
    """Raise MetropolisError naming `path` unless the tile of `name` is free."""
    x, y = at
    if not grid.contains(at) or grid.walls[y, x]:
        raise MetropolisError(
            f"{path}: {name} is at ({x}, {y}), which is not free; it should be a free "
            f"tile of the map, which is {grid.width} x {grid.height}"
        )


def _fields(profile: Profile) -> dict[str, Any]:
    """The fields that are required or not empty."""
    values = asdict(profile) | {"settings": table_of(profile.settings)}
    required = {of.name for of in fields(Profile) if of.default is of.default_factory}
    return {name: value for name, value in values.items() if value or name in required}


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
