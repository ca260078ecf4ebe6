"""Validation of users' input: a world's attributes and agents, checked before their first use."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from datetime import datetime
from inspect import iscoroutinefunction
from math import inf
from typing import Any

import numpy as np

from metropolis.maps.map import GridMap
from metropolis.names import cut
from metropolis.rules.metrics import GenAgent, Geodesic, Hops, PlaneMetric
from metropolis.types import MetropolisError
from metropolis.world.appearance import check_appearance
from metropolis.world.base import Agent, World

STEP_S_MAX = 1e6
"""Longest step; traces have the same limit."""
SEED_MAX = 2**63 - 1


def check_world_parts(world: Any, agents: Any) -> None:
    """Raise MetropolisError unless `world` is a world and `agents` a sequence of named agents."""
    if not isinstance(world, World):
        raise MetropolisError(f"the world is {cut(world)}; it should be a metropolis.World")
    _check_attributes(world)
    check_appearance(world.appearance, f"the world {type(world).__name__}")
    if not isinstance(agents, Sequence) or isinstance(agents, str | bytes):
        raise MetropolisError(
            f"the agents are {cut(agents)}; they should be a list of metropolis.Agent"
        )
    for index, agent in enumerate(agents):
        if not isinstance(agent, Agent):
            raise MetropolisError(
                f"agents[{index}] is {cut(agent)}; it should be a metropolis.Agent"
            )
        name = getattr(agent, "name", None)
        if not isinstance(name, str) or not name:
            raise MetropolisError(
                f"the name of agents[{index}], a {type(agent).__name__}, is {cut(name)}; it "
                "should be a text that is not empty"
            )
        parameters = getattr(agent, "__dataclass_params__", None)
        if parameters is not None and parameters.frozen:
            raise MetropolisError(
                f"agents[{index}], a {type(agent).__name__}, is a frozen dataclass; an agent "
                "changes in a run, so leave out frozen=True"
            )
        _check_plain(agent, "routine", "intent", "tables")


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int, also one of NumPy.

    Raises MetropolisError unless it is a whole number, from `least` to `most` if they are given.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    is_low = number is not None and least is not None and number < least
    is_high = number is not None and most is not None and number > most
    if number is None or is_low or is_high:
        bounds = ""
        if most is not None:
            bounds = f" from {least} to {most}"
        elif least is not None:
            bounds = f", at least {least}"
        raise MetropolisError(f"{name} is {cut(value)}; it should be a whole number{bounds}")
    return number


def seed_of(seed: Any, name: str = "seed") -> int:
    """`seed` as an int. Raises MetropolisError unless it is from 0 to SEED_MAX."""
    return whole_number(name, seed, 0, SEED_MAX)


def check_options(options: Any, name: str = "options") -> None:
    """Raise MetropolisError unless `options` are a dictionary, or None."""
    if not isinstance(options, Mapping | None):
        raise MetropolisError(f"{name} is {cut(options)}; it should be a dictionary, or None")


def check_function(name: str, function: Any) -> None:
    """Raise MetropolisError unless `function` is a plain function, or None."""
    if function is not None and not callable(function):
        raise MetropolisError(f"{name} is {cut(function)}; it should be a function, or None")
    _check_synchronous(name, function)


def check_number(name: str, value: Any, least: float = 0.0) -> None:
    """Raise MetropolisError unless `value` is a number >= `least`; infinity is allowed."""
    if not _is_number(value) or not value >= least:
        raise MetropolisError(f"{name} is {cut(value)}; it should be a number, at least {least:g}")


def _check_attributes(world: World) -> None:
    _check_plain(world, "observe")
    step_s: Any = world.step_s
    if not _is_number(step_s) or not 0 < step_s <= STEP_S_MAX:
        raise MetropolisError(
            f"the world's step_s is {cut(step_s)}; it should be a number of seconds above 0, at "
            f"most {STEP_S_MAX:g}"
        )
    metric: Any = world.metric
    if not isinstance(metric, PlaneMetric | Geodesic | GenAgent | Hops):
        raise MetropolisError(
            f"the world's metric is {cut(metric)}; it should be one of metropolis.rules.metrics: "
            "CHEBYSHEV, EUCLIDEAN, MANHATTAN, or a Geodesic, GenAgent or Hops (over a graph of "
            "places, for any other distance in whole steps)"
        )
    for name, kind, right in (
        ("name", str, "a text"),
        ("start", datetime, "a datetime"),
        ("map", GridMap | None, "a metropolis.maps.map.GridMap, or None"),
    ):
        value: Any = getattr(world, name)
        if not isinstance(value, kind):
            raise MetropolisError(f"the world's {name} is {cut(value)}; it should be {right}")
    if isinstance(metric, Geodesic | GenAgent) and world.map is not None:
        for layer in ("walls", "arenas") if isinstance(metric, GenAgent) else ("walls",):
            if not np.array_equal(getattr(metric, layer), getattr(world.map, layer)):
                raise MetropolisError(
                    f"the {layer} of the world's metric differ from those of its map, with which "
                    "its runs are replayed; make both from the same array"
                )
    if world.start.tzinfo is not None:
        raise MetropolisError(
            f"the world's start is {world.start}; it should be the local time, without time zone"
        )


def _check_plain(owner: World | Agent, *methods: str) -> None:
    for name in methods:
        _check_synchronous(f"{type(owner).__name__}.{name}", getattr(owner, name))


def _check_synchronous(name: str, function: Any) -> None:
    if iscoroutinefunction(function):
        raise MetropolisError(f"{name} is an async function; it should be a plain one")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= inf
