"""What a worker is given: a cluster, what it may read, and how far it can go on by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from metropolis.rules.metrics import Metric
from metropolis.store.outcome import NO_ANSWERS, Outcome, PaidAnswers
from metropolis.types import AgentId, Dispatch, Position, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import Parts
from metropolis.world.state import State


@dataclass(frozen=True, slots=True)
class Lookahead:
    """An agent that runs alone and can go on alone: see Controller.clear_until."""

    until: Step
    position: Position
    """Where it stands."""
    far: float
    """How far it may come from there."""


NOWHERE: Mapping[AgentId, Lookahead] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The part of a world that a cluster may read; there may be more in it."""

    step: Step
    versions: Sequence[tuple[Step, Entity]]
    """What the step sees, with the step since which it is so."""
    events: Sequence[Event]
    """What the step perceives, by source, and of one source as it emitted them."""
    later_versions: Sequence[tuple[Step, str, Entity | None]] = ()
    """What later steps see, for who goes on behind others; None: it is gone."""
    later_events: Sequence[Event] = ()
    """What later steps perceive, in the same order."""

    def state(self, metric: Metric, radius: float) -> State:
        """A State that answers the members of the cluster as the whole world's would."""
        state = State(metric, radius, (), self.step)
        by_step: dict[Step, dict[str, Entity | None]] = {}
        for since, entity in self.versions:
            by_step.setdefault(since, {})[entity.name] = entity
        for since in sorted(by_step):
            state.commit(since - 1, by_step[since], (), self.step)
        state.restore_events(self.events)
        return state

    def after(self, outcome: Outcome) -> StateSnapshot:
        """What the next step sees here."""
        following = self.step + 1
        seen = {entity.name: (since, entity) for since, entity in self.versions}
        writes = {name: entity for since, name, entity in self.later_versions if since == following}
        for name, entity in (writes | dict(outcome.writes)).items():
            seen.pop(name, None)
            if entity is not None:
                seen[name] = following, entity
        events = [event for event in self.later_events if event.step == self.step]
        return StateSnapshot(
            following,
            [*seen.values()],
            sorted([*outcome.events, *events], key=lambda event: event.source),
            [version for version in self.later_versions if version[0] > following],
            [event for event in self.later_events if event.step > self.step],
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A cluster that a worker has to run and commit before its lease runs out."""

    id: str
    number: int
    """Tells this claim from an earlier or later one of the same cluster; those that were claimed
    together share it."""
    worker: str
    step: Step
    agents: tuple[AgentId, ...]
    slice: StateSnapshot
    minds: Mapping[AgentId, Parts]
    """Of the members whose mind this worker cannot have: it did not commit their last step. In the
    parts of metropolis.world.parts."""
    answers: PaidAnswers
    """What language models have answered the members in this step before."""
    until: Step = 0
    """As far as an agent alone can go on without asking anybody, in what `slice` shows."""

    @property
    def continues(self) -> bool:
        """Whether its worker need not ask before the next step."""
        return self.step + 1 < self.until

    def following(self, outcome: Outcome) -> Claim:
        """Of the next step, after a commit that goes on."""
        step = self.step + 1
        return replace(
            self,
            id=cluster_id(Dispatch(step, self.agents)),
            step=step,
            slice=self.slice.after(outcome),
            minds={},
            answers=NO_ANSWERS,
        )


def cluster_id(cluster: Dispatch | Claim | Outcome) -> str:
    """What tells it from all other clusters in the queue: an agent runs a step once."""
    return f"{cluster.step}:{cluster.agents[0]}"
