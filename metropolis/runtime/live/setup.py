"""The start of a run: checks before anything is written or paid for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from inspect import iscoroutine
from math import inf, isfinite
from typing import Any

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend
from metropolis.llm.client import Client
from metropolis.llm.client_arguments import backend_flaw
from metropolis.names import cut
from metropolis.rules.rules import Rule, conservative, lockstep, versioned
from metropolis.runtime.live.configuration import RunConfiguration
from metropolis.types import AgentError, MetropolisError, Position, Step
from metropolis.world.base import World
from metropolis.world.checks import whole_number
from metropolis.world.entities import AGENT, Entity
from metropolis.world.user_errors import describe_error, explain
from metropolis.world.view import Reach

RADIUS_MAX = 1e14
"""Maximum of finite radii: the core accepts 1e15, and rules add velocities."""
VELOCITY_MAX = 1e9
"""The core's maximum velocity."""


def client_of(llm: Any, world: World) -> Client:
    """Return `llm` if it is a client, or a new client of this backend; None: the world's author.

    Raises MetropolisError on anything else.
    """
    if isinstance(llm, Client):
        return llm
    backend: Backend = Scripted(world.author) if llm is None else llm
    if flaw := backend_flaw(backend):
        raise MetropolisError(
            f"llm is {flaw}; it should be a metropolis.Client, a backend such as "
            "metropolis.llm.connect.connect returns for a URL, or None"
        )
    return Client(backend)


_ADDED = re.compile(r"[^/]*/(.+)/\d+/\d+")
"""Names that `Member.add` makes."""


def initial_entities(
    world: World, names: Sequence[str], seed: int, options: Mapping[str, Any]
) -> list[Entity]:
    """What `World.reset` returns. Raises MetropolisError unless it fits `names` and the metric."""
    entities = reset(world, seed, options)
    check_entities(world, entities, names)
    check_free_names(f"{type(world).__name__}.reset returned", entities, names)
    return entities


def check_free_names(source: str, entities: Iterable[Entity], names: Collection[str]) -> None:
    """Raise MetropolisError if an entity has a name that `Member.add` may give to a later one.

    `source` is the beginning of the error.
    """
    for entity in entities:
        added = _ADDED.fullmatch(entity.name)
        if added is not None and added[1] in names:
            raise MetropolisError(
                f"{source} an entity {entity.name!r}, a name that {added[1]!r} could give to a "
                "thing it adds; choose another name"
            )


def reset(world: World, seed: int, options: Mapping[str, Any]) -> list[Entity]:
    """The result of `World.reset`. Raises MetropolisError unless it is a list of entities."""
    called = f"{type(world).__name__}.reset"
    try:
        returned: Any = world.reset(seed=seed, options=options)
        is_list = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping)
        entities: list[Any] = list(returned) if is_list else []
    except (Exception, SystemExit) as error:
        sentence = f"{called}: {describe_error(error, world)}"
        if isinstance(error, SystemExit):
            raise AgentError(sentence) from error
        if not isinstance(error, MetropolisError):
            explain(error, sentence)
        raise
    if iscoroutine(returned):
        returned.close()
        raise MetropolisError(f"{called} is an async function; it should be a plain one")
    if not is_list:
        raise MetropolisError(
            f"{called} returned {cut(returned)}; it should return a list of metropolis.Entity"
        )
    names: set[str] = set()
    for entity in entities:
        _check_fields(called, entity)
        if entity.name in names:
            raise MetropolisError(f"two entities are named {entity.name!r}; names are unique")
        names.add(entity.name)
    return entities


def _check_fields(called: str, entity: Any) -> None:
    if not isinstance(entity, Entity):
        raise MetropolisError(
            f"{called} returned a list with {cut(entity)}; it should return a list of "
            "metropolis.Entity"
        )
    for field, kind, right in (
        ("name", str, "a text"),
        ("kind", str, "a text"),
        ("state", Mapping, "a dictionary"),
    ):
        if not isinstance(value := getattr(entity, field), kind):
            raise MetropolisError(
                f"{called} returned an entity {cut(entity.name)} whose {field} is {cut(value)}; "
                f"it should be {right}"
            )


def check_entities(world: World, entities: Sequence[Entity], names: Sequence[str]) -> None:
    """Raise MetropolisError unless a run of the agents `names` can begin with `entities`."""
    bodies(entities, names)
    for entity in entities:
        if flaw := world.metric.flaw(entity.position):
            raise MetropolisError(
                f"{entity.name!r} begins at {entity.position}, where nothing can be: {flaw}"
            )


def bodies(entities: Sequence[Entity], names: Sequence[str]) -> list[Position]:
    """The agents' positions. Raises MetropolisError if bodies and agents do not match."""
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
    """The world's bounds. Raises MetropolisError if they are invalid."""
    for name in ("perception_radius", "max_velocity", "joint_radius"):
        value: Any = getattr(world, name, None)
        if name == "joint_radius" and value is None:
            continue
        least = -inf if name == "joint_radius" else 0  # negative: no joint actions
        # NumPy's other numbers would be added in their own precision, by some parts only
        is_number = isinstance(value, int | float)
        if not is_number or not value >= least:
            raise MetropolisError(
                f"the world's {name} is {value!r}; it should be an int or a float, at least 0"
            )
        most = VELOCITY_MAX if name == "max_velocity" else RADIUS_MAX
        if most < abs(value) < inf:
            raise MetropolisError(f"the world's {name} is too large; it should be at most {most:g}")
    if not isfinite(world.max_velocity):
        raise MetropolisError("the world's max_velocity is infinite; it should be a number")
    reach, horizon = world.reach, getattr(world.metric, "horizon", inf)
    for far in (reach.perception_radius, reach.max_velocity, reach.joint_radius):
        if horizon < far < inf:
            raise MetropolisError(
                f"the horizon of the world's metric is {horizon}, and nothing is measured beyond "
                f"it; it should be at least the world's largest radius and its velocity, {far:g}"
            )
    return reach


def checked_steps(world: World, steps: Step, recorded: Step) -> Step:
    """`steps` as an int.

    Raises MetropolisError unless a run of which `recorded` steps are known can end there.
    """
    steps = whole_number("steps", steps, 0)
    if steps < recorded:
        raise MetropolisError(
            f"the run has already reached step {recorded}; it cannot end at {steps}"
        )
    try:
        world.start + timedelta(seconds=steps * world.step_s)
    except OverflowError:
        raise MetropolisError(
            f"step {steps} of the world would begin after the year 9999, which dates do not "
            f"support; its start is {world.start}, and a step takes {world.step_s:g} s"
        ) from None
    return steps


def rule_of(configuration: RunConfiguration, reach: Reach) -> Rule:
    """The controller's rule; every mode validates the joint radius."""
    exact = versioned(reach.perception_radius, reach.max_velocity, reach.joint_radius)
    if configuration.mode not in ("out_of_order", "optimistic"):
        return lockstep()
    if configuration.mode == "optimistic" or configuration.rule == "versioned":
        return exact
    return conservative(reach.perception_radius, reach.max_velocity)
