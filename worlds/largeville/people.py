"""The residents of further towns: those of the first, renamed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.resources import files
from itertools import product
from random import Random
from typing import Any

from metropolis.types import MetropolisError
from metropolis.worlds.smallville.profile import Profile


class Renaming:
    """Replaces names in texts: full names, and first names alone."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: the full name in the first town -> the full name in this town."""
        self._new = dict(names)
        for old, new in names.items():
            self._new[old.split()[0]] = new.split()[0]
        longest_first = sorted(self._new, key=len, reverse=True)
        self._old = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")

    def text(self, text: str) -> str:
        """`text` with this town's names."""
        return self._old.sub(lambda found: self._new[found[0]], text) if self._new else text

    def profile(self, profile: Profile, left: int) -> Profile:
        """`profile` of the first town, renamed and moved `left` tiles east."""
        at = (profile.at[0] + left, profile.at[1])
        return replace(with_texts(profile, self.text), at=at)


def with_texts(profile: Profile, change: Callable[[str], str]) -> Profile:
    """`profile` with `change` applied to each text of its fields, keys included."""

    def changed(value: Any) -> Any:
        match value:
            case str():
                return change(value)
            case Mapping():
                return {change(name): change(text) for name, text in value.items()}
            case list() | tuple():
                return type(value)(changed(item) for item in value)
        return value

    return replace(
        profile, **{field.name: changed(getattr(profile, field.name)) for field in fields(profile)}
    )


def renamings(first: Sequence[Profile], towns: int, seed: int) -> list[Renaming]:
    """One renaming per town, with unique names; the first town keeps its names.

    Raises MetropolisError when there are not enough names.
    """
    lists = tomllib.loads((files(__package__) / "names.toml").read_text("utf-8"))
    pairs = product(lists["surname_beginnings"], lists["surname_endings"])
    further = [beginning + ending for beginning, ending in pairs]
    taken: set[str] = set()
    found = [Renaming({})]
    for number in range(1, towns):
        random = Random(f"{seed}/{number}/names")
        pools = {key: random.sample(lists[key], len(lists[key])) for key in ("women", "men")}
        names = {}
        for profile in first:
            woman = profile.first_name in lists["women_of_the_first_town"]
            given = pools["women" if woman else "men"].pop()
            names[profile.name] = _full_name(given, lists["surnames"], further, taken, random)
        found.append(Renaming(names))
    return found


def _full_name(
    given: str, surnames: list[str], further: list[str], taken: set[str], random: Random
) -> str:
    """A name that is not `taken`; `further` surnames are used when `given` has all `surnames`."""
    for drawn in (surnames, further):
        for surname in random.sample(drawn, len(drawn)):
            name = f"{given} {surname}"
            if name not in taken:
                taken.add(name)
                return name
    towns = (len(surnames) + len(further)) * 5 // 2
    raise MetropolisError(
        f"there are no more surnames for {given}; largeville has names for about {towns} towns"
    )
