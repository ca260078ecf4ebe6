"""Profiles of a town's residents: the data of each one before the first step."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec

from metropolis.types import MetropolisError


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One resident, as `residents.toml` describes them."""

    name: str
    age: int
    traits: str
    occupation: str
    background: str
    habits: str
    goal: str
    """Their present goal."""
    home: str
    """The sector in which they live."""
    room: str
    """The arena of `home` in which they sleep."""
    at: tuple[int, int]
    """Their tile at step 0, beside or on their bed."""
    workplace: str = ""
    """The sector in which they work or study; empty: at home, or none."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Favourite topic -> their remark about it."""
    relations: Mapping[str, str] = field(default_factory=dict)
    """Name of another resident -> a sentence about them."""
    memories: Sequence[str] = ()
    """Other memories at step 0, most of them about the town."""
    news: Sequence[str] = ()
    """Facts that they like to pass on."""
    secrets: Sequence[str] = ()
    """Facts that they keep to themselves."""

    @property
    def first_name(self) -> str:
        """The first name, which friends use."""
        return self.name.split()[0]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    resident: list[Profile]


def read_profiles(path: Path) -> list[Profile]:
    """The residents of a TOML file with a table `[[resident]]` each.

    Raises MetropolisError naming the file and the field.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
        profiles = msgspec.convert(content, _File).resident
    except OSError as error:
        raise MetropolisError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise MetropolisError(
            f"{path}: {error}; each [[resident]] needs the fields of a Profile"
        ) from None
    known = {of.name for of in fields(Profile)}
    for table in content["resident"]:
        if unknown := set(table) - known:
            raise MetropolisError(
                f"{path}: {table['name']} has a field {min(unknown)!r}; the fields are "
                f"{', '.join(sorted(known))}"
            )
    names = [profile.name for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise MetropolisError(f"{path}: two residents are named {name!r}; names are unique")
    return profiles
