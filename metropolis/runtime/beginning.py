"""Where a run begins: what is looked at before anything is written down or paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from numbers import Real
from typing import Any

from metropolis.rules.rules import Rule, conservative, lockstep, versioned
from metropolis.types import MetropolisError, Position
from metropolis.world.base import World
from metropolis.world.entities import AGENT, Entity
from metropolis.world.view import Reach


def begin(
    world: World, names: Sequence[str], seed: int, options: Mapping[str, Any]
) -> list[Entity]:
    """Step 0. Raises MetropolisError when it does not fit the agents `names` or the metric."""
    entities = list(world.reset(seed=seed, options=options))
    check_entities(world, entities, names)
    return entities


def check_entities(world: World, entities: Sequence[Entity], names: Sequence[str]) -> None:
    """Raise MetropolisError when a run of the agents `names` cannot begin with them."""
    bodies(entities, names)
    for entity in entities:
        if flaw := world.metric.flaw(entity.position):
            raise MetropolisError(
                f"{entity.name!r} begins at {entity.position}, where nothing can be: {flaw}"
            )


def bodies(entities: Sequence[Entity], names: Sequence[str]) -> list[Position]:
    """Where the agents stand. Raises MetropolisError when bodies and agents do not match."""
    if not names:
        raise MetropolisError("there are no agents; a run needs at least one")
    found = {entity.name: entity.position for entity in entities if entity.kind == AGENT}
    if sorted(names) != sorted(found):
        odd = sorted(set(names) ^ set(found)) or [n for n in names if names.count(n) > 1]
        raise MetropolisError(
            f"agents and bodies do not match at {odd[0]!r}; World.reset should return one entity "
            "of kind 'agent' for every agent, with its name, and names are unique"
        )
    return [found[name] for name in names]


def checked_reach(world: World) -> Reach:
    """The world's bounds. Raises MetropolisError when they are no distances."""
    for name in ("perception_radius", "max_velocity", "joint_radius"):
        value = getattr(world, name)
        if name == "joint_radius" and value is None:
            continue
        least = -inf if name == "joint_radius" else 0  # negative: nobody acts together
        if not isinstance(value, Real) or not float(value) >= least:
            raise MetropolisError(
                f"the world's {name} is {value!r}; it should be a number, at least 0"
            )
    if not isfinite(world.max_velocity):
        raise MetropolisError("the world's max_velocity is infinite; it should be a number")
    return world.reach


def rule_of(mode: str, rule: str, reach: Reach) -> Rule:
    """The controller's rule; the check of the joint radius holds for every mode."""
    exact = versioned(reach.perception_radius, reach.max_velocity, reach.joint_radius)
    if mode != "out_of_order":
        return lockstep()
    if rule == "versioned":
        return exact
    return conservative(reach.perception_radius, reach.max_velocity)
