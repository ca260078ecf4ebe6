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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.maps.map import GridMap, read_genagent_map
from metropolis.types import MetropolisError
from metropolis.worlds.smallville.folder import check_tile, write_town
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.workplaces import Places, Workplace

SIMULATION = "base_the_ville_n25"
_SERVER = Path("environment/frontend_server")
_ASSETS = _SERVER / "static_dirs/assets/the_ville"
_OCCUPATION = re.compile(r"\bis an? ([^.,;]+?)(?= (?:who|at|of|in|that|with)\b|[.,;]|$)")


@dataclass(frozen=True)
class People:
    """The agents of a stored simulation."""

    profiles: list[Profile]
    workplaces: list[Workplace]
    """One for each profile."""
    surplus_tiles: list[str]
    """Names with a start tile that are no agents of the simulation."""


@click.command(name="import-genagent")
@click.argument("checkout", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--simulation", default=SIMULATION, show_default=True, help="Stored simulation with the agents."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(checkout: Path, out: Path, simulation: str, as_json: bool) -> None:
    """Make a town from the map and the agents in CHECKOUT, a copy of Generative Agents.

    Prints each person's occupation and workplace, and the field that names the workplace. Run the
    town with `metropolis run OUT`.
    """
    if out.exists():
        raise MetropolisError(f"{out} exists; name a folder that does not exist")
    grid = read_genagent_map(checkout / _ASSETS / "matrix")
    people = read_genagent_people(checkout, simulation, grid)
    write_town(out, grid, people.profiles)
    if as_json:
        click.echo(json.dumps(_as_json(out, grid, people), indent=2))
        return
    _print_table(people)
    click.echo(
        f"{out}: {grid.name}, {grid.width} x {grid.height} tiles, {len(people.profiles)} "
        f"residents, {sum(bool(place.sector) for place in people.workplaces)} with a workplace; "
        f"metropolis run {out}"
    )
    if people.surplus_tiles:
        names = printable(", ".join(people.surplus_tiles))
        click.echo(
            f"warning: ignored {len(people.surplus_tiles)} start tiles of people who are not in "
            f"the simulation: {names}",
            err=True,
        )


def read_genagent_people(checkout: Path, simulation: str, grid: GridMap) -> People:
    """The agents of a stored simulation, in the order of its `persona_names`.

    Raises MetropolisError naming the file and the field.
    """
    stored = checkout / _SERVER / "storage" / simulation
    starts_file = stored / "environment" / "0.json"
    starts = _json(starts_file)
    history = _history(checkout / _ASSETS / "agent_history_init_n25.csv")
    names = _names(stored)
    profiles, plans = [], []
    for name in names:
        at = _tile(starts, name, starts_file)
        path = stored / "personas" / name / "bootstrap_memory" / "scratch.json"
        scratch = _json(path)
        profile = _profile(name, at, scratch, path, history.get(name, ()), grid)
        check_tile(grid, profile, starts_file)
        profiles.append(profile)
        plans.append(
            _text(scratch, "daily_plan_req", path) if scratch.get("daily_plan_req") else ""
        )
    places = Places(grid.arena_names, {profile.home for profile in profiles})
    workplaces = []
    for profile, plan in zip(profiles, plans, strict=True):
        texts = {
            "learned": profile.background,
            "daily_plan_req": plan,
            "currently": profile.goal,
        }
        others = [name for name in names if name != profile.name]
        workplaces.append(places.workplace(profile.name, texts, profile.home, others))
    profiles = [
        replace(profile, workplace=place.sector)
        for profile, place in zip(profiles, workplaces, strict=True)
    ]
    return People(profiles, workplaces, [name for name in starts if name not in set(names)])


def _names(stored: Path) -> list[str]:
    """The agents: `persona_names` of meta.json, or without it the folders in personas/."""
    path = stored / "reverie" / "meta.json"
    names = _json(path).get("persona_names") if path.exists() else None
    if names is None:
        path = stored / "personas"
        names = sorted(of.name for of in path.iterdir() if of.is_dir()) if path.is_dir() else []
        if not names:
            raise MetropolisError(f"{path}: has no folders; it should have one for each person")
    if not isinstance(names, list) or not names:
        raise MetropolisError(
            f"{path}: the field persona_names is {names!r}; it should be a list of names"
        )
    for name in names:
        is_name = isinstance(name, str) and name.isprintable() and name.strip(" .")
        if not is_name or "/" in name or "\\" in name:
            raise MetropolisError(
                f"{path}: the field persona_names holds {name!r}; it should hold names of people"
            )
        if names.count(name) > 1:
            raise MetropolisError(f"{path}: the field persona_names holds {name!r} twice")
    return names


def _tile(starts: dict[str, Any], name: str, path: Path) -> tuple[int, int]:
    start = starts.get(name)
    x, y = (start.get("x"), start.get("y")) if isinstance(start, dict) else (None, None)
    if type(x) is not int or type(y) is not int:
        raise MetropolisError(
            f"{path}: the tile of {name!r} is {start!r}; it should have x and y, whole numbers"
        )
    return x, y


def _profile(
    name: str,
    at: tuple[int, int],
    scratch: dict[str, Any],
    path: Path,
    memories: tuple[str, ...],
    grid: GridMap,
) -> Profile:
    """A person without a workplace."""
    innate, learned, currently, lifestyle, living_area = (
        _text(scratch, field, path)
        for field in ("innate", "learned", "currently", "lifestyle", "living_area")
    )
    home, _, room = living_area.partition(":")[2].partition(":")
    if f"{home}: {room}" not in grid.arena_names:
        raise MetropolisError(
            f"{path}: the field living_area is {living_area!r}; it should be "
            "world:sector:arena, with a sector and an arena of the map"
        )
    if type(scratch.get("age")) is not int:
        raise MetropolisError(
            f"{path}: the field age is {scratch.get('age')!r}; it should be a whole number"
        )
    found = _OCCUPATION.search(learned)
    return Profile(
        name=name,
        age=scratch["age"],
        traits=innate,
        occupation=found[1] if found else "resident",
        background=learned,
        habits=lifestyle,
        goal=currently,
        home=home,
        room=room,
        at=at,
        memories=memories,
    )


def _text(scratch: dict[str, Any], field: str, path: Path) -> str:
    text = scratch.get(field)
    if not isinstance(text, str):
        raise MetropolisError(f"{path}: the field {field} is {text!r}; it should be a text")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise MetropolisError(f"{path}: the field {field} has half a character, {text!r}")
    return text


def _place(workplace: Workplace) -> str:
    return f"{workplace.sector} ({workplace.arena})" if workplace.arena else workplace.sector


def _print_table(people: People) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("person", "occupation", "workplace", "from"):
        table.add_column(heading)
    for profile, place in zip(people.profiles, people.workplaces, strict=True):
        cells = (profile.name, profile.occupation, _place(place) or "-", place.field or "-")
        table.add_row(*map(printable, cells))
    Console(markup=False, highlight=False).print(table)


def _as_json(out: Path, grid: GridMap, people: People) -> dict[str, Any]:
    rows = zip(people.profiles, people.workplaces, strict=True)
    return {
        "town": str(out),
        "map": grid.name,
        "width": grid.width,
        "height": grid.height,
        "residents": [
            {
                "name": profile.name,
                "occupation": profile.occupation,
                "workplace": place.sector or None,
                "arena": place.arena or None,
                "field": place.field or None,
            }
            for profile, place in rows
        ],
        "surplus_tiles": people.surplus_tiles,
    }


def _history(path: Path) -> dict[str, tuple[str, ...]]:
    """The initial memories of each person, if the file exists; a row is a name and facts."""
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) > 1]
    except (OSError, ValueError, csv.Error) as error:
        raise MetropolisError(
            f"{path}: cannot be read ({error}); it should be a CSV file of names and facts"
        ) from None
    return {
        name.strip(): tuple(fact.strip() for fact in ";".join(facts).split(";") if fact.strip())
        for name, *facts in rows[1:]
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MetropolisError(
            f"{path}: cannot be read ({reason}); name a checkout of Generative Agents, and with "
            "--simulation one of its stored simulations"
        ) from None
    if not isinstance(content, dict):
        raise MetropolisError(f"{path}: should be a JSON object")
    return content
