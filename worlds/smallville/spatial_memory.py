"""A resident's spatial memory: the places and objects that it knows of.

At first a resident knows its home without the bedrooms of others, its workplace, and the `places`
of its profile. It then learns every place and object within its square of vision, which walls do
not cut, as in the code of Park et al. (2023).
"""

from __future__ import annotations

from collections.abc import Iterable

from metropolis.types import MetropolisError
from metropolis.worlds.smallville.geography import Atlas
from metropolis.worlds.smallville.profile import Profile

Known = dict[str, dict[str, list[str]]]
"""Sector -> arena -> objects, each in the order of learning; an arena may have no known object."""


def first_known(profile: Profile, atlas: Atlas) -> Known:
    """What a resident knows before the first step.

    Raises MetropolisError for a place that is not on the map.
    """
    known: Known = {}
    home = atlas.places.get(profile.home, {})
    rooms = [profile.room, *(room for room, things in home.items() if "bed" not in things)]
    named = [f"{profile.home}: {room}" for room in rooms]
    named += [profile.workplace] if profile.workplace else []
    for place in (*named, *profile.places):
        within = atlas.within(place)
        if not within:
            raise MetropolisError(
                f"{profile.name} knows the place {place!r}, which is not on the map; a place is a "
                "sector, `sector: arena`, or `sector: arena: object`"
            )
        learn(known, within)
    return known


def learn(known: Known, addresses: Iterable[str]) -> None:
    """Add `sector: arena` and `sector: arena: object`."""
    for address in addresses:
        sector, arena, *thing = address.split(": ")
        things = known.setdefault(sector, {}).setdefault(arena, [])
        if thing and thing[0] not in things:
            things.append(thing[0])
