"""Where a checkout of Generative Agents, or of a project made from it, has what is imported.

The folders of the project are looked at first. Projects made from it move and rename them, so
otherwise the whole checkout is searched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from metropolis.durable import reachable
from metropolis.names import is_folder_name
from metropolis.types import MetropolisError
from metropolis.worlds.smallville.genagent.files import Fields, read_object

SERVER = Path("environment/frontend_server")
STORAGES = (SERVER / "storage", SERVER / "compressed_storage")
ASSETS, MAZE = SERVER / "static_dirs/assets", "the_ville"
MAP_FILE = "maze_meta_info.json"


def find_simulation(checkout: Path, simulation: str) -> Path:
    """The folder of a simulation, which has a folder `personas`, by its name or path."""
    for folder in (*STORAGES, Path()):
        path = checkout / folder / simulation
        if reachable(path / "personas").is_dir():
            return path
    stored = [*_folders_with(checkout, "personas")]
    named = [path for path in stored if path.name == simulation]
    if len(named) == 1:
        return named[0]
    raise MetropolisError(
        f"{checkout}: has {'several simulations' if named else 'no simulation'} named "
        f"{simulation!r}; name a checkout of Generative Agents, and with --simulation one of its "
        f"simulations ({_listed(checkout, named or stored)})"
    )


def meta_of(stored: Path) -> Fields:
    """The simulation's `reverie/meta.json`, or `meta.json` of a compressed one; empty if none."""
    path = stored / "reverie" / "meta.json"
    if not path.exists() and (stored / "meta.json").exists():
        path = stored / "meta.json"
    return Fields(read_object(path) if path.exists() else {}, f"{path}")


def find_map(checkout: Path, meta: Fields) -> tuple[Path, str]:
    """The folder `matrix` of the simulation's `maze_name` or of another map, and a warning or "".

    The published code always reads `the_ville`.
    """
    maze = MAZE if meta.content.get("maze_name") is None else meta.text("maze_name")
    if not is_folder_name(maze):
        raise meta.wrong("maze_name", f"the name of a folder in {ASSETS}, such as {MAZE}")
    matrix = _matrix(checkout, maze)
    if matrix.parent.name == maze:
        return matrix, ""
    own = checkout / ASSETS / maze / "matrix"
    return matrix, (
        f"the simulation's maze_name is {maze!r}, and {own} is not a folder; imported "
        f"{matrix.parent.name}"
    )


def new_names(meta: Fields) -> dict[str, dict[str, str]]:
    """Layer of the map -> name -> new name: `block_remaps`, which one of the projects has added."""
    remaps = meta.content.get("block_remaps") or {}
    if isinstance(remaps, dict) and all(
        isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
        for names in remaps.values()
    ):
        return remaps
    raise meta.wrong("block_remaps", "{layer: {name: new name}}")


def _matrix(checkout: Path, maze: str) -> Path:
    found: list[Path] = []
    for name in (maze, MAZE):
        usual = checkout / ASSETS / name / "matrix"
        if usual.is_dir():
            return usual
        found = found or [*_folders_with(checkout, MAP_FILE)]
        named = [path for path in found if path.parent.name == name]
        if len(named) == 1:
            return named[0]
    if len(found) == 1:
        return found[0]
    raise MetropolisError(
        f"{checkout}: has no map in {ASSETS / maze}; name one with --map, a folder with {MAP_FILE} "
        f"({_listed(checkout, found)})"
    )


def _folders_with(checkout: Path, name: str) -> Iterator[Path]:
    """The folders that have an entry `name`, outermost first; none in one of these."""
    for root, folders, files in os.walk(checkout):
        if name in folders or name in files:
            folders.clear()
            yield Path(root)
        folders[:] = sorted(of for of in folders if not of.startswith("."))


def _listed(checkout: Path, paths: Sequence[Path]) -> str:
    names = [os.path.relpath(path, checkout) for path in paths]
    shown = ", ".join(map(repr, names[:20])) or "it has none"
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
