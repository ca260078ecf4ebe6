"""Claims: a cluster, the state it may read, and how far its worker can continue by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from metropolis.rules.metrics import Metric
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.types import AgentId, Dispatch, Position, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Parts
from metropolis.world.state import Area, State


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How far an agent that runs alone can continue alone, see `Controller.clear_until`."""

    until: Step
    """The step up to which the agent can continue alone."""
    position: Position
    """The current position of the agent."""
    far: float
    """The maximum distance that the agent moves from `position` before `until`."""


NO_LOOKAHEAD: Mapping[AgentId, Lookahead] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The part of a world that a cluster may read at `step`, or more than that."""

    step: Step
    versions: Sequence[tuple[Step, Entity]]
    """(first step, entity) of each version that is visible to `step`."""
    events: Sequence[Event]
    """The events that `step` perceives, by source, then in order of emission."""
    later_versions: Sequence[tuple[Step, str, Entity | None]] = ()
    """(first step, name, entity) of versions that only later steps see, if the agent can continue
    behind others; None: the entity is removed."""
    later_events: Sequence[Event] = ()
    """The events that only later steps perceive, in the same order."""
    shared_state: State | None = None
    """The world's own state, in place of all others, if the worker shares it with the store."""

    @classmethod
    def of(cls, state: State, areas: Sequence[Area], step: Step, last: Step) -> StateSnapshot:
        """The snapshot of all that the steps from `step` to `last` may read in `areas`."""
        versions, events = state.around(areas, step, last)
        return cls(
            step,
            [(since, entity) for since, _, entity in versions if entity and since <= step],
            [event for event in events if event.step < step],
            [version for version in versions if version[0] > step],
            [event for event in events if event.step >= step],
        )

    def state(self, metric: Metric, radius: float) -> State:
        """A State that gives the members of the cluster the same results as the whole world's."""
        if self.shared_state is not None:
            return self.shared_state
        state = State(metric, radius, (), self.step)
        by_step: dict[Step, dict[str, Entity | None]] = {}
        for since, entity in self.versions:
            by_step.setdefault(since, {})[entity.name] = entity
        for since in sorted(by_step):
            state.commit(since - 1, by_step[since], ())
        state.restore_events(self.events)
        return state

    def after(self, execution: Execution) -> StateSnapshot:
        """The snapshot of the next step."""
        following = self.step + 1
        seen = {entity.name: (since, entity) for since, entity in self.versions}
        writes = {name: entity for since, name, entity in self.later_versions if since == following}
        for name, entity in (writes | dict(execution.writes)).items():
            seen.pop(name, None)
            if entity is not None:
                seen[name] = following, entity
        events = [event for event in self.later_events if event.step == self.step]
        return StateSnapshot(
            following,
            [*seen.values()],
            sorted([*execution.events, *events], key=lambda event: event.source),
            [version for version in self.later_versions if version[0] > following],
            [event for event in self.later_events if event.step > self.step],
        )


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A cluster that a worker must run and commit before the lease expires."""

    id: str
    number: int
    """Distinguishes this claim from earlier and later ones of the same cluster; clusters claimed
    together share it."""
    worker: str
    step: Step
    agents: tuple[AgentId, ...]
    snapshot: StateSnapshot
    minds: Mapping[AgentId, Parts]
    """Minds of members whose last step this worker did not commit, in the parts of
    metropolis.world.parts."""
    answers: PaidAnswers
    """Earlier answers of language models to the members in this step."""
    until: Step = 0
    """The step up to which a single agent can continue without a new claim, using `snapshot`."""

    @property
    def continues(self) -> bool:
        """Whether the worker can run the next step without a new claim."""
        return self.step + 1 < self.until

    def following(self, execution: Execution) -> Claim:
        """The claim of the next step, after a commit that continues."""
        step = self.step + 1
        return msgspec.structs.replace(
            self,
            id=cluster_id(Dispatch(step, self.agents)),
            step=step,
            snapshot=self.snapshot.after(execution),
            minds={},
            answers=NO_ANSWERS,
        )


def cluster_id(cluster: Dispatch | Claim | Execution) -> str:
    """A unique id of the cluster in the queue: an agent runs a step once."""
    return f"{cluster.step}:{cluster.agents[0]}"
