"""The people of a stored simulation: their profiles, settings and what they have lived through."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from metropolis.maps.map import GridMap
from metropolis.names import cut, is_folder_name
from metropolis.trace.importers.genagent import NO_BREAK
from metropolis.trace.importers.genagent_times import CLOCK, DATE
from metropolis.types import MetropolisError
from metropolis.worlds.smallville.genagent.files import Fields, read_object
from metropolis.worlds.smallville.genagent.homes import home_of, stated_home
from metropolis.worlds.smallville.genagent.mind import (
    map_tile,
    past_of,
    read_memories,
    relations_of,
)
from metropolis.worlds.smallville.genagent.workplaces import Places, Workplace
from metropolis.worlds.smallville.geography import Atlas, Tile
from metropolis.worlds.smallville.past import Past
from metropolis.worlds.smallville.profile import Profile
from metropolis.worlds.smallville.settings import (
    EXPORTED_SETTINGS,
    EXPORTED_WORKPLACE,
    PRESETS,
    Settings,
    settings_of,
)
from metropolis.worlds.smallville.world import START

_OCCUPATION = re.compile(
    r"(?:^|(?<=[.!?;]\s)|\n)([^.!?;\n]*?)\bis an? "
    r"([^.,;]+?)(?= (?:who|at|of|in|that|with)\b|[.,;]|$)"
)
"""The subject of a sentence, and what it is."""
_SETTINGS = {
    "vision_r": "vision_tiles",
    "att_bandwidth": "attention_bandwidth",
    "retention": "retention",
    "recency_decay": "recency_decay",
    "importance_trigger_max": "reflection_threshold",
}
"""Field of scratch.json -> field of Settings."""
_TEXTS = ("innate", "learned", "currently", "lifestyle", "living_area")
"""Fields of scratch.json that the project's code lets be null."""
_WEIGHTS = {
    "recency_w": "recency_weight",
    "relevance_w": "relevance_weight",
    "importance_w": "importance_weight",
}
"""Field of scratch.json that is a factor -> the field of Settings whose preset it multiplies."""


@dataclass(frozen=True)
class People:
    """The agents of a stored simulation."""

    profiles: list[Profile]
    workplaces: list[Workplace]
    """The workplace of each profile, in the same order."""
    pasts: dict[str, Past]
    """Name -> past, for the people who have one."""
    start: datetime
    """The time at which the simulation continues."""
    surplus_tiles: list[str]
    """Names with a start tile that are not agents of the simulation."""
    unknown_places: list[str]
    """Places in spatial memories that are not on the map."""
    off_walls: dict[str, Tile]
    """Name -> the tile at step 0, for people whose own one has a wall."""
    other_homes: dict[str, str]
    """Name -> `sector: arena`, for people whose `living_area` is not on the map."""
    missing_texts: dict[str, str]
    """Name -> fields of `scratch.json`, for people without a text in these."""


@dataclass(frozen=True)
class _Person:
    """What is read of one person; `profile` lacks the workplace and relations."""

    profile: Profile
    workplace: Workplace | None
    """The workplace in the metropolis run that was exported; None: it is not such an export."""
    plan: str
    past: Past | None
    unknown_places: list[str]
    stands_on: Tile | None
    """The tile on which the person stands, if that of the files has a wall."""
    has_other_home: bool
    missing: tuple[str, ...]
    """Texts that the file does not have."""


def read_genagent_people(
    stored: Path, meta: Fields, grid: GridMap, history: Path, preset: str
) -> People:
    """The agents of the simulation in the folder `stored`, in the order of its `persona_names`.

    `history` is the file of their first memories, or a folder that may have one. `preset` names the
    settings that their own fields change. Raises MetropolisError naming the file and the field.
    """
    starts_file = stored / "environment" / "0.json"
    starts = read_object(starts_file) if starts_file.exists() else {}
    names, start = _names(stored, meta), _start(meta)
    whispers = _history(history, len(names))
    atlas = Atlas(grid)
    people = [
        _person(
            stored / "personas" / name / "bootstrap_memory",
            name.replace(NO_BREAK, " "),
            starts.get(name),
            starts_file,
            whispers.get(name, ()),
            atlas,
            start,
            preset,
        )
        for name in names
    ]
    homes = {person.profile.home for person in people}
    known = Places(grid.arena_names, homes)
    profiles, workplaces = [], []
    for person in people:
        profile = person.profile
        others = [of.profile.name for of in people if of is not person]
        texts = {
            "learned": profile.background,
            "daily_plan_req": person.plan,
            "currently": profile.goal,
        }
        workplaces.append(
            person.workplace or known.workplace(profile.name, texts, profile.home, others)
        )
        said = (profile.background, profile.goal, *profile.memories)
        lived = person.past.memories if person.past else ()
        relations = relations_of(profile.name, said, lived, others)
        profiles.append(replace(profile, workplace=workplaces[-1].sector, relations=relations))
    return People(
        profiles,
        workplaces,
        {person.profile.name: person.past for person in people if person.past},
        start,
        [name for name in starts if name not in set(names)],
        sorted({place for person in people for place in person.unknown_places}),
        {of.profile.name: of.stands_on for of in people if of.stands_on},
        {
            of.profile.name: f"{of.profile.home}: {of.profile.room}"
            for of in people
            if of.has_other_home
        },
        {of.profile.name: ", ".join(of.missing) for of in people if of.missing},
    )


def _names(stored: Path, meta: Fields) -> list[str]:
    """The agents: `persona_names` of meta.json, or without it the folders in personas/."""
    names, field = meta.content.get("persona_names"), f"{meta.place}: the field persona_names"
    if names is None:
        path = stored / "personas"
        names = sorted(of.name for of in path.iterdir() if of.is_dir()) if path.is_dir() else []
        if not names:
            raise MetropolisError(f"{path}: has no folders; it should have one for each person")
    if not isinstance(names, list) or not names:
        raise MetropolisError(f"{field} is {names!r}; it should be a list of names")
    for name in names:
        if not isinstance(name, str) or not is_folder_name(name.replace(NO_BREAK, " ")):
            raise MetropolisError(f"{field} holds {name!r}; it should hold names of people")
        if not (stored / "personas" / name).is_dir():
            raise MetropolisError(
                f"{field} holds {name!r}; {stored / 'personas'} has no folder of this name, and "
                "should have one for each person"
            )
    for name, count in Counter(name.replace(NO_BREAK, " ") for name in names).items():
        if count > 1:
            raise MetropolisError(f"{field} holds {name!r} twice")
    return names


def _start(meta: Fields) -> datetime:
    """The time at which the simulation stands; without it the usual start."""
    for field, form in (("curr_time", CLOCK), ("start_date", DATE)):
        if meta.content.get(field) is not None:
            try:
                return datetime.strptime(meta.text(field), form)
            except ValueError:
                right = f"a time such as {datetime(2023, 2, 13):{form}}"
                raise meta.wrong(field, right) from None
    return START


def _start_tile(start: Any, name: str, path: Path, scratch: Fields, grid: GridMap) -> Tile:
    """The tile of `environment/0.json`; if it has none, that of `scratch.json`."""
    if start is None:
        if scratch.content.get("curr_tile") is not None:
            return map_tile(scratch, "curr_tile", grid)
        raise MetropolisError(
            f"{path}: has no tile of {name!r}, and {scratch.place} no curr_tile; one of them "
            "should say where the person begins"
        )
    x, y = (start.get("x"), start.get("y")) if isinstance(start, dict) else (None, None)
    if type(x) is not int or type(y) is not int:
        raise MetropolisError(
            f"{path}: the tile of {name!r} is {start!r}; it should have x and y, whole numbers"
        )
    if not grid.contains((x, y)):
        raise MetropolisError(
            f"{path}: the tile of {name!r} is ({x}, {y}); it should be a tile of the map, which is "
            f"{grid.width} x {grid.height}"
        )
    return x, y


def _person(
    root: Path,
    name: str,
    begins: Any,
    starts_file: Path,
    history: tuple[str, ...],
    atlas: Atlas,
    start: datetime,
    preset: str,
) -> _Person:
    path = root / "scratch.json"
    scratch = Fields(read_object(path), f"{path}")
    memories = read_memories(root / "associative_memory" / "nodes.json", start)
    places, unknown = _places(root / "spatial_memory.json", atlas)
    past = past_of(name, scratch, memories, places, atlas.grid, start)
    missing = tuple(of for of in _TEXTS if scratch.content.get(of) is None)
    texts = {of: "" if of in missing else scratch.text(of) for of in _TEXTS}
    learned, living_area = texts["learned"], texts["living_area"]
    begin = _start_tile(begins, name, starts_file, scratch, atlas.grid)
    at = atlas.grid.free_tile(begin)
    own = home_of(living_area, atlas, at)
    if not own:
        raise MetropolisError(
            f"{path}: the field living_area is {living_area!r}; the map has no arenas, and should "
            "have some"
        )
    home, _, room = own.partition(": ")
    plan = scratch.text("daily_plan_req") if scratch.content.get("daily_plan_req") else ""
    habits = texts["lifestyle"]
    if past is None or past.day is None:  # otherwise it is the plan of one day
        habits = f"{habits} {plan}".strip()
    profile = Profile(
        name=name,
        age=scratch.whole("age"),
        traits=texts["innate"],
        occupation=_occupation(learned, name),
        background=learned,
        habits=habits,
        goal=texts["currently"],
        home=home,
        room=room,
        at=at,
        bed=_bed(atlas, own, at),
        memories=() if memories else history,
        places=() if past else places,
        settings=_settings(scratch, preset),
    )
    stands_on = past.at if past and past.at else at
    files_say = begin if past is None or past.at is None else scratch.tile("curr_tile")
    return _Person(
        profile,
        _workplace(scratch, atlas.grid),
        plan,
        past,
        unknown,
        stands_on=None if stands_on == files_say else stands_on,
        missing=missing,
        has_other_home=own != stated_home(living_area),
    )


def _occupation(learned: str, name: str) -> str:
    """What the first sentence "NAME is a ..." or "She is a ..." says; without one "resident"."""
    own = {*name.split(), "He", "She", "They"}
    found = (said[2] for said in _OCCUPATION.finditer(learned) if own.issuperset(said[1].split()))
    return next(found, "resident")


def _workplace(scratch: Fields, grid: GridMap) -> Workplace | None:
    """The workplace in an exported metropolis run; None if the simulation is not such an export."""
    if EXPORTED_WORKPLACE not in scratch.content:
        return None
    sector = scratch.text(EXPORTED_WORKPLACE)
    if sector and sector not in {arena.partition(": ")[0] for arena in grid.arena_names}:
        raise scratch.wrong(EXPORTED_WORKPLACE, "a sector of the map, or empty")
    return Workplace(sector, "", EXPORTED_WORKPLACE if sector else "")


def _bed(atlas: Atlas, room: str, at: Tile) -> Tile | None:
    """A tile of the person's room to sleep on; None: the person begins in the room, on `at`."""
    free = atlas.tiles(room)
    return None if at in free else next(iter((*atlas.tiles(f"{room}: bed"), *free)), None)


def _settings(scratch: Fields, preset: str) -> Settings:
    """The settings in an exported metropolis run; otherwise the preset with the file's values."""
    exported = scratch.content.get(EXPORTED_SETTINGS)
    if exported is not None and not isinstance(exported, dict):
        raise scratch.wrong(EXPORTED_SETTINGS, "an object")
    if exported is not None:
        return _checked(f"{scratch.place}: {EXPORTED_SETTINGS}: ", exported)
    own: dict[str, Any] = {"preset": preset}
    is_by_rank = PRESETS[preset].recency == "rank"
    for field, setting in _SETTINGS.items():
        if field in scratch.content and (field != "recency_decay" or is_by_rank):
            number = scratch.number(field)
            own[setting] = int(number) if number.is_integer() else number
    for field, setting in _WEIGHTS.items():
        if field in scratch.content:
            own[setting] = getattr(PRESETS[preset], setting) * scratch.number(field)
    return _checked(f"{scratch.place}: ", own)


def _checked(place: str, values: Mapping[str, Any]) -> Settings:
    try:
        return settings_of(values)
    except MetropolisError as error:
        raise MetropolisError(f"{place}{error}") from None


def _places(path: Path, atlas: Atlas) -> tuple[tuple[str, ...], list[str]]:
    """The places of `spatial_memory.json`, and those that are not on the map."""
    if not path.exists():
        return (), []
    named = [place for world in read_object(path).values() for place in _walk(world, (), path)]
    known = tuple(place for place in named if atlas.within(place))
    return known, [place for place in named if not atlas.within(place)]


def _walk(content: Any, above: Sequence[str], path: Path) -> Iterator[str]:
    """The ends of {sector: {arena: [object]}}, as `sector: arena: object`."""
    if isinstance(content, dict) and len(above) < 2:
        for name, within in content.items():
            yield from _walk(within, (*above, name), path)
    elif isinstance(content, list) and len(above) == 2 and {*map(type, content)} <= {str}:
        yield from (
            (": ".join((*above, thing)) for thing in content) if content else [": ".join(above)]
        )
    else:
        raise MetropolisError(
            f"{path}: {cut(content)} in {': '.join(above) or 'the world'} should be "
            "{sector: {arena: [object]}}"
        )


def _history(path: Path, people: int) -> dict[str, tuple[str, ...]]:
    """The initial memories of each person; a row is a name and facts.

    Of a folder the file is the one for this number of people, or else that of
    `base_the_ville_n25`, if any.
    """
    if path.is_dir():
        own, usual = (path / f"agent_history_init_n{of}.csv" for of in (people, 25))
        path = own if own.is_file() else usual
        if not path.is_file():
            return {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) > 1]
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MetropolisError(
            f"{path}: cannot be read ({reason}); it should be a CSV file of names and facts"
        ) from None
    return {
        name.strip(): tuple(fact.strip() for fact in ";".join(facts).split(";") if fact.strip())
        for name, *facts in rows[1:]
    }
