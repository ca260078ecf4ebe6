"""`metropolis world import-genagent`: import a town of the Generative Agents project.

A checkout of that project (Park et al. 2023) has the map under
``environment/frontend_server/static_dirs/assets/the_ville/matrix``, the agents' initial memories in
``agent_history_init_n25.csv`` beside it, and a simulation's agents and start tiles under
``environment/frontend_server/storage/SIMULATION``.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import click

from metropolis.maps.map import GridMap, read_genagent_map
from metropolis.types import MetropolisError
from metropolis.worlds.smallville.folder import write_town
from metropolis.worlds.smallville.profile import Profile

SIMULATION = "base_the_ville_n25"
_SERVER = Path("environment/frontend_server")
_ASSETS = _SERVER / "static_dirs/assets/the_ville"
_OCCUPATION = re.compile(r"\bis an? ([^.,;]+?)(?= (?:who|at|of|in|that|with)\b|[.,;]|$)")


@click.command(name="import-genagent")
@click.argument("checkout", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--simulation", default=SIMULATION, show_default=True, help="Stored simulation with the agents."
)
def command(checkout: Path, out: Path, simulation: str) -> None:
    """Make a town from the map and the agents in CHECKOUT, a copy of Generative Agents.

    Run it with `metropolis run OUT`.
    """
    if out.exists():
        raise MetropolisError(f"{out} exists; name a folder that does not exist")
    grid = read_genagent_map(checkout / _ASSETS / "matrix")
    profiles = read_genagent_people(checkout, simulation, grid)
    write_town(out, grid, profiles)
    click.echo(
        f"{out}: {grid.name}, {grid.width} x {grid.height} tiles, {len(profiles)} residents; "
        f"metropolis run {out}"
    )


def read_genagent_people(checkout: Path, simulation: str, grid: GridMap) -> list[Profile]:
    """The agents of a stored simulation, in the order of their start tiles.

    Raises MetropolisError naming the file and the field.
    """
    stored = checkout / _SERVER / "storage" / simulation
    starts_file = stored / "environment" / "0.json"
    starts = _json(starts_file)
    history = _history(checkout / _ASSETS / "agent_history_init_n25.csv")
    profiles = []
    for name, start in starts.items():
        scratch_file = stored / "personas" / name / "bootstrap_memory" / "scratch.json"
        try:
            at = int(start["x"]), int(start["y"])
        except (KeyError, TypeError, ValueError):
            raise MetropolisError(
                f"{starts_file}: the tile of {name!r} is {start!r}; it should have x and y"
            ) from None
        scratch = _json(scratch_file)
        profiles.append(_profile(name, at, scratch, scratch_file, history.get(name, ()), grid))
    if not profiles:
        raise MetropolisError(f"{starts_file}: is empty; it should give a tile for each person")
    return profiles


def _profile(
    name: str,
    at: tuple[int, int],
    scratch: dict[str, Any],
    path: Path,
    memories: tuple[str, ...],
    grid: GridMap,
) -> Profile:
    texts: dict[str, str] = {}
    for field in ("innate", "learned", "currently", "lifestyle", "living_area"):
        text = scratch.get(field)
        if not isinstance(text, str):
            raise MetropolisError(f"{path}: the field {field} is {text!r}; it should be a text")
        texts[field] = text
    home, _, room = texts["living_area"].partition(":")[2].partition(":")
    if f"{home}: {room}" not in grid.arena_names:
        raise MetropolisError(
            f"{path}: the field living_area is {texts['living_area']!r}; it should be "
            "world:sector:arena, with a sector and an arena of the map"
        )
    if not isinstance(scratch.get("age"), int):
        raise MetropolisError(f"{path}: the field age should be a whole number")
    found = _OCCUPATION.search(texts["learned"])
    return Profile(
        name=name,
        age=scratch["age"],
        traits=texts["innate"],
        occupation=found[1] if found else "resident",
        background=texts["learned"],
        habits=texts["lifestyle"],
        goal=texts["currently"],
        home=home,
        room=room,
        at=at,
        workplace=_workplace(texts, home, grid),
        memories=memories,
    )


def _workplace(texts: dict[str, str], home: str, grid: GridMap) -> str:
    """The first sector of the map, except home, that the person's description names."""
    sectors = {name.partition(": ")[0] for name in grid.arena_names if name} - {home}
    for field in ("learned", "currently", "lifestyle"):
        named = [sector for sector in sorted(sectors) if sector.lower() in texts[field].lower()]
        if named:
            return max(named, key=len)
    return ""


def _history(path: Path) -> dict[str, tuple[str, ...]]:
    """The initial memories of each person, if the file exists; a row is a name and facts."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) > 1]
    return {
        name.strip(): tuple(fact.strip() for fact in ";".join(facts).split(";") if fact.strip())
        for name, *facts in rows[1:]
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MetropolisError(
            f"{path}: cannot be read ({reason}); name a checkout of Generative Agents, and with "
            "--simulation one of its stored simulations"
        ) from None
    if not isinstance(content, dict):
        raise MetropolisError(f"{path}: should be a JSON object")
    return content
