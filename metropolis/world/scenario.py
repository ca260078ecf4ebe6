"""A world ready to run, and how the command line finds it by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from random import Random
from typing import Any

from metropolis.types import MetropolisError
from metropolis.world.base import Agent, World
from metropolis.world.record import StepRecord

GROUP = "metropolis.worlds"
"""Entry points: name -> a function (agents: int | None, seed: int) -> Scenario."""


def plain_story(record: StepRecord) -> Sequence[str]:
    """The events of a step: who, what, and its data."""
    return [
        " ".join([event.source, event.kind, *map(str, event.data.values())])
        for event in record.events
    ]


@dataclass(frozen=True)
class Scenario:
    """A world with its agents, and what makes it pleasant to run without a model."""

    world: World
    agents: Sequence[Agent]
    author: Callable[[Any, Random], str] | None = None
    """Answers a `metropolis.llm.Request` offline, for the scripted backend; None: its own words."""
    story: Callable[[StepRecord], Sequence[str]] = plain_story
    """What to tell people of a step, a sentence each; called in order of steps."""
    steps: int = 360
    """How long a run is unless told otherwise."""


def scenario_names() -> list[str]:
    """The worlds that are installed."""
    return sorted(point.name for point in entry_points(group=GROUP))


def make_scenario(name: str, *, agents: int | None = None, seed: int = 0) -> Scenario:
    """The scenario `name` with that many agents; None: as many as it usually has.

    Raises MetropolisError when there is none.
    """
    for point in entry_points(group=GROUP, name=name):
        scenario: Scenario = point.load()(agents=agents, seed=seed)
        return scenario
    raise MetropolisError(f"there is no world {name!r}; there are {', '.join(scenario_names())}")
