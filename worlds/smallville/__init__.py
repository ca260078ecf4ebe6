"""SmallVille: a town of 25 generative agents, in the manner of Park et al. 2023."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from metropolis.maps.town import alderbrook
from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario
from metropolis.worlds.smallville.author import author
from metropolis.worlds.smallville.geography import Atlas
from metropolis.worlds.smallville.profile import read_profiles
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.story import Story
from metropolis.worlds.smallville.world import SmallVille

STEPS = 7 * 360
"""Seven hours: from six in the morning to one in the afternoon."""


def make(*, agents: int | None = None, seed: int = 0) -> Scenario:  # noqa: ARG001 -- a scenario's arguments
    """Alderbrook with its first `agents` residents; None: with all 25.

    Raises MetropolisError when it has not as many.
    """
    profiles = read_profiles(Path(str(files(__package__) / "residents.toml")))
    count = len(profiles) if agents is None else agents
    if not 1 <= count <= len(profiles):
        raise MetropolisError(
            f"smallville has {len(profiles)} residents, and {count} were asked for; "
            "largeville has as many towns as it takes"
        )
    atlas = Atlas(alderbrook().map)
    world = SmallVille(atlas.grid, profiles[:count])
    residents = [Resident(profile, atlas) for profile in profiles[:count]]
    return Scenario(world, residents, author, Story(world, profiles[:count]), STEPS)
