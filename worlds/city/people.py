"""The residents of the city: those of LargeVille's towns, with ties to other towns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from metropolis.maps.town import alderbrook
from metropolis.worlds.city.terrain import SHIFT, TOWNS, named, town_map
from metropolis.worlds.largeville.people import Renaming, with_texts
from metropolis.worlds.smallville.profile import Profile

COMMUTERS = {1: 4, 2: 2}
"""Distance of two towns -> the number of pairs with the same work who exchange workplaces."""
FRIENDS = {1: 4, 2: 2}
"""Distance of two towns -> the number of pairs of friends."""
_KIN = ("a cousin", "an old friend", "a friend from school")
_VISITS = re.compile(
    rf"(?:^|\. )([^.,]+) is (?:{'|'.join(_KIN)}) of [^.,]+, lives at ([^.,]+), and is always"
    r" glad of a visit"
)
_SECTORS = {name.partition(": ")[0] for name in alderbrook().map.arena_names[1:]}
_BARE = re.compile(
    rf"(?<! of )\b(?:{'|'.join(sorted((*_SECTORS, TOWNS[0]), key=len, reverse=True))})\b"
    r"(?! of [A-Z])"
)


class Places:
    """Completes the names of places in texts, which a town uses without its name."""

    def __init__(self, town: str, workplace: str = "", work_town: str = "") -> None:
        """`town` is where a resident lives; `workplace` is a place of `work_town`."""
        self._town, self._elsewhere = town, {workplace: work_town} if work_town else {}

    def text(self, text: str) -> str:
        """`text` with `sector of town` for each sector, and the town's name for Alderbrook's."""
        return _BARE.sub(self._complete, text)

    def _complete(self, found: re.Match[str]) -> str:
        return self._town if found[0] == TOWNS[0] else named(found[0], self._of(found[0]))

    def _of(self, sector: str) -> str:
        return self._elsewhere.get(sector, self._town)


def citizens(first: Sequence[Profile], towns: Sequence[Renaming], seed: int) -> list[Profile]:
    """The residents `first` of the first town in each of `towns`, with ties drawn by the seed."""
    work = _workplaces(first, len(towns), seed)
    people = [
        [
            _settled(renaming.profile(profile, number * town_map().width), town, work[number][role])
            for role, profile in enumerate(first)
        ]
        for number, (renaming, town) in enumerate(zip(towns, TOWNS, strict=False))
    ]
    for number, other, random in _neighbours(len(towns), seed, "friends"):
        for _ in range(FRIENDS[other - number]):
            one, two = random.randrange(len(first)), random.randrange(len(first))
            a, b, kin = people[number][one], people[other][two], random.choice(_KIN)
            people[number][one], people[other][two] = _befriended(a, b, kin), _befriended(b, a, kin)
    return [profile for town in people for profile in town]


def visits(text: str) -> list[tuple[str, str]]:
    """The friends in other towns that `text` names, with their homes."""
    return _VISITS.findall(text)


def _workplaces(first: Sequence[Profile], towns: int, seed: int) -> list[list[int]]:
    """For each town and role, the town in which it works."""
    work = [[number] * len(first) for number in range(towns)]
    for number, other, random in _neighbours(towns, seed, "commuters"):
        free = [
            role
            for role, profile in enumerate(first)
            if profile.workplace and (work[number][role], work[other][role]) == (number, other)
        ]
        for role in random.sample(free, min(COMMUTERS[other - number], len(free))):
            work[number][role], work[other][role] = other, number
    return work


def _neighbours(towns: int, seed: int, what: str) -> list[tuple[int, int, Random]]:
    """The pairs of towns at the distances of a tie, each with its random generator."""
    pairs = [(one, one + hops) for one in range(towns) for hops in COMMUTERS if one + hops < towns]
    return [(one, two, Random(f"{seed}/{one}/{two}/{what}")) for one, two in pairs]


def _settled(profile: Profile, town: str, work: int) -> Profile:
    """`profile` on the map of the city, working in the town `work`."""
    work_town = TOWNS[work]
    x, y = profile.at
    settled = with_texts(profile, Places(town, profile.workplace, work_town).text)
    there = [named(place, work_town) for place in profile.places if work_town != town]
    known = [named(place, town) for place in profile.places]
    return replace(settled, at=(x + SHIFT[0], y + SHIFT[1]), places=(*known, *there))


def _befriended(me: Profile, other: Profile, kin: str) -> Profile:
    """`me` with a relation to `other`, whose home without its bedrooms it knows."""
    about = (
        f"{other.name} is {kin} of {me.name}, lives at {other.home}, and is always glad of a visit."
    )
    rooms = _common_rooms(other.home)
    return replace(
        me,
        relations={**me.relations, other.name: about},
        places=(*me.places, *(room for room in rooms if room not in me.places)),
    )


def _common_rooms(home: str) -> list[str]:
    """The rooms of `home`, a sector of the city, without beds."""
    sector, _, town = home.rpartition(" of ")
    grid = alderbrook().map
    found = []
    for number, name in enumerate(grid.arena_names):
        things = {grid.object_names[thing] for thing in grid.objects[grid.arenas == number]}
        if name.startswith(f"{sector}: ") and "bed" not in things:
            found.append(named(name, town))
    return found
