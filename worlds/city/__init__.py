"""A city: SmallVille towns whose residents commute and visit each other, by road and by train."""

from __future__ import annotations

from datetime import datetime

from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario
from metropolis.worlds.city.atlas import CityAtlas
from metropolis.worlds.city.author import CityAuthor
from metropolis.worlds.city.people import citizens
from metropolis.worlds.city.terrain import city_map
from metropolis.worlds.city.world import City
from metropolis.worlds.largeville.people import renamings
from metropolis.worlds.smallville import STEPS, town_profiles
from metropolis.worlds.smallville.author import FUNCTIONS
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.story import Story
from metropolis.worlds.smallville.world import START

AGENTS = 100


def make(
    *, agents: int | None = None, seed: int = 0, start: datetime = START, preset: str = "paper"
) -> Scenario:
    """Make as many towns as `agents` need; None: 100 agents in four towns.

    A third of the residents take the train to a neighbouring town, the others walk. `preset` names
    the residents' settings. Raises MetropolisError when `agents` is less than 1, there are no names
    for so many towns, or there is no such preset.
    """
    count = AGENTS if agents is None else agents
    if count < 1:
        raise MetropolisError(f"city cannot have {count} residents; it needs at least one")
    first = town_profiles(preset)
    grid = city_map(-(-count // len(first)))
    towns = renamings(first, -(-count // len(first)), seed)
    atlas = CityAtlas(len(towns))
    profiles = citizens(first, towns, seed)[:count]
    world = City(grid, profiles, start=start)
    residents = [
        Resident(
            profile,
            atlas.of(number, rides=number % 3 == 0),
            first_day=start.date(),
            now_s=world.clock_s(0),
        )
        for number, profile in enumerate(profiles)
    ]
    answers = CityAuthor(towns, len(first))
    return Scenario(world, residents, answers, Story(world, profiles), STEPS, FUNCTIONS)
