"""The states of the world in an optimistic run: the final one, and the one with predictions."""

from __future__ import annotations

from collections.abc import Sequence

from metropolis.types import Step
from metropolis.workers.optimistic.digests import Digests
from metropolis.world.base import World
from metropolis.world.entities import Entity, Event
from metropolis.world.state import State


class WorldStates:
    """What executions read: `final` values if they are sure, otherwise `predicted` ones."""

    def __init__(
        self, world: World, entities: Sequence[Entity], events: Sequence[Event], first_step: Step
    ) -> None:
        """`entities` and `events` are what `first_step` sees and perceives."""
        self.final, self.predicted = (
            State(world.metric, world.perception_radius, entities, first_step) for _ in range(2)
        )
        self.first_step = first_step
        self.digests = Digests(first_step)
        """Of the values in both."""
        for state in (self.final, self.predicted):
            state.restore_events(events)

    def read_by(self, *, sure: bool) -> State:
        """The state that an execution reads."""
        return self.final if sure else self.predicted

    def collect(self, floor: Step) -> None:
        """Drop what only steps below `floor` could read."""
        self.final.collect(floor)
        self.predicted.collect(floor)
