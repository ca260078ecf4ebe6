"""Profiles of a town's residents: the data of each one before the first step."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from metropolis.types import MetropolisError
from metropolis.worlds.smallville.settings import PRESETS, Settings, settings_of

_DATED = re.compile(r"(\d{4}-\d\d-\d\d): (.+)")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The description of one resident in `residents.toml`."""

    name: str
    age: int
    traits: str
    occupation: str
    background: str
    habits: str
    goal: str
    """The resident's goal at step 0."""
    home: str
    """The sector in which the resident lives."""
    room: str
    """The arena of `home` in which the resident sleeps."""
    at: tuple[int, int]
    """The resident's tile at step 0."""
    bed: tuple[int, int] | None = None
    """The tile on which the resident sleeps; None: `at`."""
    workplace: str = ""
    """The sector in which the resident works or studies; empty: at home, or nowhere."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Favourite topic -> the resident's remark about it."""
    relations: Mapping[str, str] = field(default_factory=dict)
    """Name of another resident -> a sentence about that resident."""
    memories: tuple[str, ...] = ()
    """Other memories at step 0, most of them about the town."""
    news: Mapping[str, str] = field(default_factory=dict)
    """Mark -> a fact that the resident likes to tell others. The mark is a list of words, separated
    by commas, that every telling of the fact contains, and no other text. With the key
    `2023-02-14: mark` the resident learns the fact on the morning of that day."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Mark -> a fact that the resident keeps secret, with keys like those of `news`."""
    places: tuple[str, ...] = ()
    """Places known at step 0 besides home and workplace: a sector, `sector: arena`, or an object as
    `sector: arena: object`."""
    settings: Settings = PRESETS["paper"]
    """The resident's settings; in the file, a table with a `preset` and differing fields."""

    @property
    def first_name(self) -> str:
        """The first name, which friends use."""
        return self.name.split()[0]


@dataclass(frozen=True, slots=True)
class Fact:
    """An entry of `Profile.news` or `Profile.secrets`."""

    mark: str
    text: str
    since: date | None
    """The day on whose morning its owner learns it; None: before the first step."""
    secret: bool


def facts_of(profile: Profile) -> list[Fact]:
    """The profile's news, then its secrets."""
    facts = []
    for table, secret in ((profile.news, False), (profile.secrets, True)):
        for key, text in table.items():
            found = _DATED.fullmatch(key)
            try:
                since = date.fromisoformat(found[1]) if found else None
            except ValueError:
                raise MetropolisError(f"the key {key!r} begins with no date of a month") from None
            facts.append(Fact(found[2] if found else key, text, since, secret))
    return facts


def read_profiles(path: Path) -> list[Profile]:
    """The residents of a TOML file with a table `[[resident]]` each.

    Above them may stand what holds for all: `places`, to which each one's own are added, and a
    table `[settings]`, from which each one's own may differ. Raises MetropolisError naming the file
    and the field.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise MetropolisError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise MetropolisError(f"{path}: {error}; each [[resident]] is a table") from None
    common, tables = content.pop("settings", {}), content.pop("resident", None)
    places = content.pop("places", [])
    if content:
        raise MetropolisError(
            f"{path}: there is an unknown field {min(content)!r}; a file has tables [[resident]] "
            "and, for all residents, `places` and [settings]"
        )
    if not isinstance(places, list):
        raise MetropolisError(f"{path}: places is {places!r}; it should be a list of texts")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise MetropolisError(f"{path}: there is no [[resident]]; write one for each resident")
    profiles = [_profile(table, places, common, path) for table in tables]
    names = [profile.name for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise MetropolisError(f"{path}: two residents are named {name!r}; names are unique")
    return profiles


def _profile(table: dict[str, Any], places: list[Any], common: Any, path: Path) -> Profile:
    name, known = table.get("name"), {of.name for of in fields(Profile)}
    if unknown := set(table) - known:
        raise MetropolisError(
            f"{path}: {name} has a field {min(unknown)!r}; the fields are "
            f"{', '.join(sorted(known))}"
        )
    own = table.pop("settings", {})
    for settings in (common, own):
        if not isinstance(settings, dict):
            raise MetropolisError(
                f"{path}: the settings are {settings!r}; they should be a table [settings], or "
                "[resident.settings] after a resident"
            )
    if isinstance(table.get("places", []), list):
        table["places"] = [*places, *table.get("places", [])]
    try:
        profile = replace(msgspec.convert(table, Profile), settings=settings_of(common | own))
        facts_of(profile)
        return profile
    except msgspec.ValidationError as error:
        raise MetropolisError(
            f"{path}: {name}: {error}; each [[resident]] needs the fields of a Profile"
        ) from None
    except MetropolisError as error:
        raise MetropolisError(f"{path}: {name}: {error}") from None
