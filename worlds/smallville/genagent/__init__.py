"""`metropolis world import-genagent`: import a town of the Generative Agents project.

A checkout of that project (Park et al. 2023) has the map under
``environment/frontend_server/static_dirs/assets/MAZE/matrix`` (MAZE is ``the_ville``, or the
simulation's ``maze_name`` if there is such a folder), the agents' initial memories in
``agent_history_init_n25.csv`` beside it, and a simulation's agents and start tiles under
``environment/frontend_server/storage/SIMULATION``.

    checkout.py    where a checkout has them
    people.py      profiles, settings, and where the people are
    mind.py        what they remember, have planned and are doing
    workplaces.py  where they work, found in the sentences that describe them
    homes.py       where they live
    files.py       JSON files and their errors
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.maps.map import GridMap, read_genagent_map
from metropolis.tables import print_whole
from metropolis.types import MetropolisError
from metropolis.worlds.smallville.folder import write_town
from metropolis.worlds.smallville.genagent.checkout import (
    find_map,
    find_simulation,
    meta_of,
    new_names,
)
from metropolis.worlds.smallville.genagent.people import People, read_genagent_people
from metropolis.worlds.smallville.genagent.workplaces import Workplace
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.settings import PRESETS

SIMULATION = "base_the_ville_n25"


@click.command(name="import-genagent")
@click.argument("checkout", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--simulation", default=SIMULATION, show_default=True, help="Stored simulation with the agents."
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="paper",
    show_default=True,
    help="How residents rate and retrieve memories; a person's own settings take precedence.",
)
@click.option(
    "--map", "map_path", type=click.Path(path_type=Path), help="The folder of the map's matrices."
)
@click.option(
    "--history", type=click.Path(path_type=Path), help="A CSV file of first memories per person."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    checkout: Path,
    out: Path,
    simulation: str,
    preset: str,
    map_path: Path | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Make a town from the map and the agents in CHECKOUT, a copy of Generative Agents.

    Prints each person's occupation and workplace, and the field that names the workplace. Run the
    town with `metropolis run OUT`.
    """
    if out.exists():
        raise MetropolisError(f"{out} exists; name a folder that does not exist")
    stored = find_simulation(checkout, simulation)
    meta = meta_of(stored)
    matrix, warning = (map_path, "") if map_path else find_map(checkout, meta)
    warnings = [warning] if warning else []
    grid = read_genagent_map(matrix, new_names(meta), warnings)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    people = read_genagent_people(stored, meta, grid, history or matrix.parent, preset)
    write_town(out, grid, people.profiles, people.start, people.pasts)
    if as_json:
        click.echo(json.dumps(_as_json(out, grid, people), indent=2))
        return
    _print_table(people)
    click.echo(
        f"{out}: {grid.name}, {grid.width} x {grid.height} tiles, {len(people.profiles)} "
        f"residents, {sum(bool(place.sector) for place in people.workplaces)} with a workplace, "
        f"from {people.start:%Y-%m-%d %H:%M} on; metropolis run {out}"
    )
    for what, names in (
        ("start tiles of people who are not in the simulation", people.surplus_tiles),
        ("known places that are not on the map", people.unknown_places),
    ):
        if names:
            told = printable(", ".join(names))
            click.echo(f"warning: ignored {len(names)} {what}: {told}", err=True)
    for what, places in (
        ("begin near the tile of the files, which has a wall", people.off_walls),
        (
            "live in another arena, since the map does not have their living_area",
            people.other_homes,
        ),
        ("have no text in fields of scratch.json", people.missing_texts),
    ):
        if places:
            told = printable(", ".join(f"{name} ({place})" for name, place in places.items()))
            click.echo(f"warning: {len(places)} of the people {what}: {told}", err=True)


def _place(workplace: Workplace) -> str:
    return f"{workplace.sector} ({workplace.arena})" if workplace.arena else workplace.sector


def _memories(people: People, profile: Profile) -> int:
    past = people.pasts.get(profile.name)
    return len(profile.memories) + (len(past.memories) if past else 0)


def _print_table(people: People) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("person", "occupation", "workplace", "from"):
        table.add_column(heading)
    for heading in ("knows", "memories"):
        table.add_column(heading, justify="right")
    for profile, place in zip(people.profiles, people.workplaces, strict=True):
        cells = (profile.name, profile.occupation, _place(place) or "-", place.field or "-")
        counts = (str(len(profile.relations)), f"{_memories(people, profile):,}")
        table.add_row(*map(printable, cells), *counts)
    print_whole(table, Console(markup=False, highlight=False))


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
                "knows": sorted(profile.relations),
                "memories": _memories(people, profile),
            }
            for profile, place in rows
        ],
        "start": f"{people.start:%Y-%m-%dT%H:%M:%S}",
        "surplus_tiles": people.surplus_tiles,
        "unknown_places": people.unknown_places,
        "off_walls": people.off_walls,
        "other_homes": people.other_homes,
        "missing_texts": people.missing_texts,
    }
