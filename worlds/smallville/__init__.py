"""SmallVille: a town of 25 generative agents, after Park et al. 2023."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from metropolis.maps.town import alderbrook
from metropolis.world.scenario import Scenario
from metropolis.worlds.smallville.folder import STEPS, populate
from metropolis.worlds.smallville.profile import Profile, read_profiles
from metropolis.worlds.smallville.settings import settings_of
from metropolis.worlds.smallville.world import START

__all__ = ["STEPS", "make", "town_profiles"]


def town_profiles(preset: str = "paper") -> list[Profile]:
    """The 25 residents of Alderbrook with the settings `preset` (`settings.py`).

    Raises MetropolisError when there is no such preset.
    """
    settings = settings_of({"preset": preset})
    profiles = read_profiles(Path(str(files(__package__) / "residents.toml")))
    return [replace(profile, settings=settings) for profile in profiles]


def make(
    *,
    agents: int | None = None,
    seed: int = 0,  # noqa: ARG001
    preset: str = "paper",
    start: datetime = START,
) -> Scenario:
    """Alderbrook with its first `agents` residents; None: all 25.

    `preset` names the residents' settings (`settings.py`); `start` is the time of step 0. The seed
    affects only the run. Raises MetropolisError when the town has fewer residents, or there is no
    such preset.
    """
    return populate(alderbrook().map, town_profiles(preset), agents, "smallville", start)
