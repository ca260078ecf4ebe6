"""LargeVille: several SmallVille towns side by side, for 25 to 1000 and more agents."""

from __future__ import annotations

from random import Random

from metropolis.llm.base import Request
from metropolis.maps.tiling import side_by_side
from metropolis.maps.town import alderbrook
from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario
from metropolis.worlds.largeville.people import Renaming, renamings
from metropolis.worlds.smallville import STEPS, town_profiles
from metropolis.worlds.smallville.author import FUNCTIONS, author
from metropolis.worlds.smallville.geography import Atlas
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.story import Story
from metropolis.worlds.smallville.world import SmallVille

AGENTS = 100


def make(*, agents: int | None = None, seed: int = 0, preset: str = "paper") -> Scenario:
    """Make as many towns as `agents` need; None: 100 agents in four towns.

    Town k is Alderbrook with other residents, k map widths further east. `preset` names the
    residents' settings. Raises MetropolisError when `agents` is less than 1, or there is no such
    preset.
    """
    count = AGENTS if agents is None else agents
    if count < 1:
        raise MetropolisError(f"largeville cannot have {count} residents; it needs at least one")
    first = town_profiles(preset)
    town = alderbrook().map
    towns = renamings(first, -(-count // len(first)), seed)
    atlas = Atlas(town)
    atlases = [atlas.moved(number * town.width) for number in range(len(towns))]
    residents = [
        Resident(renaming.profile(profile, atlas.left), atlas)
        for renaming, atlas in zip(towns, atlases, strict=True)
        for profile in first
    ][:count]
    profiles = [resident.profile for resident in residents]
    world = LargeVille(side_by_side(town, len(towns)), profiles)
    answers = _Author(towns, len(first))
    return Scenario(world, residents, answers, Story(world, profiles), STEPS, FUNCTIONS)


class LargeVille(SmallVille):
    """Several towns; residents do not walk from one to another."""

    name = "largeville"

    def sector(self, x: int, y: int) -> tuple[str, str]:
        """See `SmallVille.sector`."""
        return super().sector(x, y)[0], f"town {x // alderbrook().map.width + 1}"


class _Author:
    """SmallVille's author, with the names of the residents of each town."""

    def __init__(self, towns: list[Renaming], size: int) -> None:
        self._towns, self._size = towns, size

    def __call__(self, request: Request, random: Random) -> str:
        return self._towns[request.agent // self._size].text(author(request, random))
