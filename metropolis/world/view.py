"""What a world may read: an agent's surroundings at the beginning of its step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NoReturn

import msgspec

from metropolis.names import cut
from metropolis.rules.metrics import Metric
from metropolis.rules.rules import ROUNDING
from metropolis.types import CausalityError, MetropolisError, Position, Step
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.randomness import keyed_random
from metropolis.world.state import Area, State, Version


@dataclass(frozen=True, slots=True)
class Reach:
    """The distances within which agents of a world perceive, write and act together."""

    metric: Metric
    perception_radius: float
    max_velocity: float
    joint_radius: float

    @property
    def rounded_velocity(self) -> float:
        """Maximum measured length of a move, with rounding errors; the controller allows 1e9."""
        return min(self.max_velocity + ROUNDING, 1e9)

    @property
    def cluster_radius(self) -> float:
        """Distance within which two agents at the same step belong to one cluster."""
        return max(2 * self.max_velocity + ROUNDING, self.joint_radius)


class Reads(msgspec.Struct, gc=False):
    """The lookups made through a view, and their results."""

    entities: dict[str, Version | None]
    """Name -> the version read; None: no such entity has ever existed."""
    areas: dict[Area, Sequence[Version]]
    """Area searched for entities -> the versions found, by name."""
    events: dict[Area, Sequence[Event]]
    """Area searched for events -> those perceived, in order."""

    def __len__(self) -> int:
        return len(self.entities) + len(self.areas) + len(self.events)


class View:
    """The part of the world that one agent may read, as of the beginning of its step.

    A lookup beyond the perception radius raises CausalityError; returned entities are frozen.
    """

    _purpose = "View"
    """The purpose of its random draws; fixed, so that renaming a class changes no history."""

    def __init__(self, state: State, reach: Reach, seed: int, step: Step, name: str) -> None:
        version = state.version(name, step)
        body = version and version[1]
        if body is None:
            raise MetropolisError(
                f"there is no body for the agent {name!r} at step {step}; World.reset should "
                "return an entity of kind 'agent' with the agent's name, and no agent may remove it"
            )
        self.step = step
        self.name = name
        self.me = body
        """The agent's own body."""
        self.reads = Reads({name: version}, {}, {})
        self.refused: set[str] = set()
        """The entities that were out of its reach."""
        self._state, self._reach, self._seed = state, reach, seed
        self._random: Random | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a view of the world is not data; observe() should return what it shows")

    @property
    def position(self) -> Position:
        """The agent's position at the beginning of its step."""
        return self.me.position

    @property
    def random(self) -> Random:
        """A generator whose draws depend on (seed, agent, step) only."""
        if self._random is None:
            self._random = keyed_random(self._seed, self.name, self.step, self._purpose)
        return self._random

    def agents(self, radius: float | None = None) -> list[Entity]:
        """The other agents' bodies within `radius`, by name; None: the perception radius."""
        return [
            body for body in self._near(radius) if body.kind == AGENT and body.name != self.name
        ]

    def things(self, kind: str | None = None, radius: float | None = None) -> list[Entity]:
        """The entities other than agents within `radius`, by name; `kind` None: all kinds."""
        return [
            entity
            for entity in self._near(radius)
            if entity.kind != AGENT and kind in (None, entity.kind)
        ]

    def entity(self, name: str) -> Entity:
        """The entity `name`. Raises CausalityError when it is not perceived.

        The agent may not even learn whether a distant entity exists.
        """
        if not isinstance(name, str):
            raise MetropolisError(f"{self._prefix()} reads {cut(name)}; give an entity's name")
        entity = self._known(name)
        if not self._perceives(entity):
            self._refuse(name)
        return entity

    def events(self, kind: str | None = None) -> list[Event]:
        """The perceived events of the previous step, ordered by their source agent."""
        radius = self._reach.perception_radius
        events = self.reads.events.get((self.position, radius))
        if events is None:  # the same question gets the same answer: the one that is recorded
            events = self._state.events(self.position, radius, self.step)
            self.reads.events[self.position, radius] = events
        return [event for event in events if kind in (None, event.kind)]

    def _lookup(self, name: str) -> Entity | None:
        known = self.reads.entities
        if name not in known:
            known[name] = self._state.version(name, self.step)
        version = known[name]
        return version and version[1]

    def _known(self, name: str) -> Entity:
        entity = self._lookup(name)
        if entity is None:
            self._refuse(name)
        return entity

    def _refuse(self, name: str) -> NoReturn:
        """Raise CausalityError: the entity is not perceived, wherever it is, if it exists."""
        self.refused.add(name)
        raise CausalityError(
            f"{self._prefix()} reads the entity {name!r}, and no entity of that name is "
            f"within the perception radius {self._reach.perception_radius:g}"
        )

    def _with_writes(self, found: Iterable[Entity], radius: float) -> Iterable[Entity]:  # noqa: ARG002
        """`found`, which is as of the beginning of the step; a `Member` adds its own writes."""
        return found

    def _near(self, radius: float | None) -> Iterable[Entity]:
        limit = self._reach.perception_radius
        chosen = limit if radius is None else float(radius)  # accepts floats of any precision
        if not chosen <= limit:  # also NaN
            raise CausalityError(
                f"{self._prefix()} looks {chosen:g} far, {chosen - limit:g} beyond the perception "
                f"radius {limit:g}"
            )
        versions = self.reads.areas.get((self.position, chosen))
        if versions is None:
            found = self._state.near(self.position, chosen, self.step)
            versions = [found[name] for name in sorted(found)]
            self.reads.areas[self.position, chosen] = versions
        return self._with_writes([entity for _, entity in versions if entity is not None], chosen)

    def _perceives(self, entity: Entity) -> bool:
        radius = self._reach.perception_radius
        return self._reach.metric.perceives(self.position, entity.position, radius)

    def _prefix(self) -> str:
        return f"step {self.step}, agent {self.name!r}:"
