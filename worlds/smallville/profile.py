"""Who lives in a town: what is known of each resident before the first step."""

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
    """What they are after at present."""
    home: str
    """The sector they live in."""
    room: str
    """The arena in it they sleep in."""
    at: tuple[int, int]
    """The tile they are on at step 0, beside or on their bed."""
    workplace: str = ""
    """The sector they work or study in; empty: at home, or nowhere."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """What they like to talk about, and what they would say about it."""
    relations: Mapping[str, str] = field(default_factory=dict)
    """What they would say of others: name -> a sentence."""
    memories: Sequence[str] = ()
    """What else they remember when the story begins, most of it about the town."""
    news: Sequence[str] = ()
    """What they know and like to pass on."""
    secrets: Sequence[str] = ()
    """What they know and keep to themselves."""

    @property
    def first_name(self) -> str:
        """How friends call them."""
        return self.name.split()[0]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    resident: list[Profile]


def read_profiles(path: Path) -> list[Profile]:
    """The residents of a TOML file with a table `[[resident]]` for each.

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
