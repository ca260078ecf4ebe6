"""The dependencies by value of a run's agent-steps, found while its steps are recorded.

A step has two halves: every agent decides by itself, then the world resolves the actions of a
cluster. A decision depends on the agent's decision before, and on the last change of everything
that it read. A change depends on the decision of the agent whose action alone makes it, or else on
those of the whole cluster, and on the last changes of what the world read for it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from metropolis._core import LeftPlaces
from metropolis.rules.native import core_metric
from metropolis.runtime.live.lone_resolver import LoneResolver
from metropolis.store.execution import ClusterEffects, Execution
from metropolis.trace.schema import ValueDependencies
from metropolis.types import AgentId, Position, Step
from metropolis.world.base import World
from metropolis.world.encoding import plain
from metropolis.world.entities import Entity, Event
from metropolis.world.state import Area, State
from metropolis.world.view import Reads, View

OBSERVATIONS_MAX = 32
"""Maximum number of trial observations without some events, for each agent-step. Without a limit, a
crowd in which all agents speak would take time proportional to the cube of its size."""
Needs = dict[AgentId, Step]
"""Agent -> the latest of its steps that is needed."""
_Change = tuple[tuple[AgentId, Step], ...]
"""The steps that a change needs: items of `Needs`. A tuple takes less memory, and few changes need
more than one agent."""


class RecordedDependencies:
    """Finds the dependencies by value in the executions of all steps, which are added in order."""

    def __init__(
        self, world: World, names: Sequence[str], entities: Sequence[Entity], seed: int
    ) -> None:
        """`entities` exist before step 0, the first step that is added."""
        self._world, self._reach, self._seed = world, world.reach, seed
        self._ids = {name: i for i, name in enumerate(names)}
        self._state = State(world.metric, world.perception_radius, entities)
        self._encode = msgspec.json.Encoder(enc_hook=plain).encode
        self._hashes: dict[str, tuple[Mapping[str, Any], int]] = {}
        """Entity -> its last hashed state, and the hash of its kind and that state."""
        self._digests = {entity.name: self._digest(entity) for entity in entities}
        self._changes: dict[str, _Change] = {}
        """Entity -> the last change of it."""
        self._left = LeftPlaces(core_metric(world.metric), max(1.0, world.perception_radius))
        self._numbers = dict(self._ids)
        """Entity -> its number in `_left`; bodies have the numbers of their agents."""
        self._emitted: dict[str, _Change] = {}
        """Agent -> the change that emitted its events in the previous step."""
        self._answered: dict[AgentId, _Change] = {}
        """Agent -> the change in which it answered a question in the previous step."""
        self._known: list[Needs] = [{agent: sys.maxsize} for agent in range(len(names))]
        """By agent id: the steps that its steps so far depend on; all its own steps are known."""
        self._names = names
        self._looked: list[Container[Area]] = [() for _ in names]
        """By agent id: the areas that the agent looked at in its last step."""
        self._offsets, self._writer, self._ago = array("q", [0]), array("i"), array("i")
        self._alone = LoneResolver(world, self._state, seed)
        self._is_known = True

    def add(self, step: Step, executions: Sequence[Execution]) -> None:
        """Add a step of all agents."""
        if not self._is_known:
            return
        ids, all_looked, answered = self._ids, self._looked, self._answered
        rows: dict[AgentId, Needs] = {}
        for execution in executions:
            if not execution.clusters:
                self._is_known = False
                return
            for name, reads in execution.observed.items():
                agent = ids[name]
                looked, all_looked[agent] = all_looked[agent], reads.areas
                if agent not in answered and self._is_unchanged(reads, step, looked):
                    continue
                needs: Needs = {}
                self._add_needs(needs, reads, step, agent, looked)
                if agent in answered:
                    _raise(needs, answered[agent])
                self._add_heard(needs, name, reads, step, self._known[agent])
                if row := self._news(agent, needs):
                    rows[agent] = row
                    self._known[agent] |= row
        effects = _Effects()
        for execution in executions:
            events = execution.events
            for cluster in execution.clusters:
                if events or cluster.writes or cluster.answered:
                    self._find(effects, step, cluster, execution)
        for name, (entity, change) in effects.writes.items():
            self._write(name, entity, change, step)
        self._emitted, self._answered = effects.emitted, effects.answered
        for execution in executions:
            if execution.writes or execution.events:
                self._state.commit(step, execution.writes, execution.events)
        self._state.collect(step + 1)
        ended = 0
        for agent in sorted(rows):
            self._offsets.extend([len(self._writer)] * (agent - ended))
            ended = agent
            for writer, needed in sorted(rows[agent].items()):
                self._writer.append(writer)
                self._ago.append(step - needed)
        self._offsets.extend([len(self._writer)] * (len(self._names) - ended))

    def result(self) -> ValueDependencies | None:
        """The dependencies so far; None if executions lacked what was read."""
        if not self._is_known:
            return None
        writer, ago = (np.frombuffer(column, np.int32) for column in (self._writer, self._ago))
        return ValueDependencies(np.frombuffer(self._offsets, np.int64), writer, ago)

    def close(self) -> None:
        """Close the event loop in which single actions are resolved."""
        self._alone.close()

    # --- what was read

    def _is_unchanged(self, reads: Reads, step: Step, looked: Container[Area]) -> bool:
        """Whether all that was read is known: seen in the step before, and not changed since."""
        if reads.areas is not looked:  # otherwise as in the step before: see LatestExecutions
            if len(reads.entities) > 1:  # things looked up by name may be new to the agent
                return False
            for version in reads.entities.values():
                if version is None or version[0] == step:
                    return False
            for area, versions in reads.areas.items():
                if area not in looked:
                    return False
                for since, _ in versions:
                    if since == step:
                        return False
        for area in reads.areas:
            if self._left.has_left(*area, step - 2):  # in step - 1
                return False
        return not (self._emitted and any(reads.events.values()))

    def _add_needs(
        self,
        needs: Needs,
        reads: Reads,
        step: Step,
        agent: AgentId,
        looked: Container[Area] = (),
    ) -> None:
        """Add what the last changes of all that was read need, except of some that the agent knows.

        In the areas that were `looked` at in the step before, only its changes are not known.
        """
        changes = self._changes
        for name in reads.entities:
            if name in changes:
                _raise(needs, changes[name])
        for area, versions in reads.areas.items():
            is_new = area not in looked
            for since, entity in versions:
                if (is_new or since == step) and entity is not None and entity.name in changes:
                    _raise(needs, changes[entity.name])
            for change in self._gone(area, versions, agent, None if is_new else step - 2):
                _raise(needs, change)

    def _gone(
        self, area: Area, versions: Sequence[Any], agent: AgentId, since: Step | None
    ) -> Iterable[Iterable[tuple[AgentId, Step]]]:
        """When those that are not among `versions` left the area, unless the agent knows that.

        If the area is not new to the agent, only those that left after the step `since` count.
        """
        found = self._left.unknown_to(agent, self._known[agent], *area, since)
        if not found:
            return ()
        seen = {self._numbers.get(entity.name) for _, entity in versions if entity is not None}
        return [change for number, change in found if number != agent and number not in seen]

    def _add_heard(self, needs: Needs, name: str, reads: Reads, step: Step, known: Needs) -> None:
        """Add what the events need that make a difference to the agent's observation.

        Events are tested by halves, since most make none. What is `known` or needed anyway is not
        tested, and what is left after OBSERVATIONS_MAX counts as different.
        """
        if not (self._emitted and any(reads.events.values())):
            return
        changes: dict[str, _Change] = {
            source: self._emitted.get(source, ()) for source in sorted(_sources(reads))
        }
        parts, unheard, observed = [list(changes)], frozenset[str](), None
        observations = 0
        while parts:
            part = [one for one in parts.pop() if not _is_known(changes[one], known, needs)]
            if not part:
                continue
            if observations < OBSERVATIONS_MAX:
                observations += 1
                if observed is None:
                    observed = self._observed(name, step, reads, unheard)
                if self._observed(name, step, reads, unheard.union(part)) == observed:
                    unheard = unheard.union(part)
                    continue
                if len(part) > 1:
                    half = len(part) // 2
                    parts += part[half:], part[:half]
                    continue
            for source in part:
                _raise(needs, changes[source])

    def _observed(self, name: str, step: Step, reads: Reads, unheard: Set[str]) -> Any:
        """What an agent observes without the events of `unheard`, in a form that compares.

        `reads` are what it read: nothing is searched for again.
        """
        view = View(self._state, self._reach, self._seed, step, name)
        heard: dict[Area, Sequence[Event]] = {
            area: [event for event in events if event.source not in unheard]
            for area, events in reads.events.items()
        }
        view.reads = Reads(dict(reads.entities), dict(reads.areas), heard)
        try:
            return self._encode(self._world.observe(view))
        except Exception:  # noqa: BLE001 -- it makes a difference
            return object()

    def _news(self, agent: AgentId, needs: Needs) -> Needs:
        """The part of `needs` that the agent's steps so far do not depend on."""
        known = self._known[agent]
        return {other: step for other, step in needs.items() if step > known.get(other, -1)}

    # --- what was changed

    def _find(
        self, effects: _Effects, step: Step, cluster: ClusterEffects, execution: Execution
    ) -> None:
        """Add the effects of a cluster, by value."""
        members = cluster.members
        events: dict[str, list[Event]] = {}
        for event in execution.events:
            if event.source in members:
                events.setdefault(event.source, []).append(event)
        writes = {
            name: execution.writes[name]
            for name in cluster.writes
            if self._digest(execution.writes[name]) != self._digests.get(name)
        }
        if not (events or writes or cluster.answered):
            return
        if len(members) > 1 and not cluster.answered:
            for name in members:
                if name not in events and not writes:
                    continue
                alone = self._alone.resolve(step, name, execution.actions[name])
                if alone is None:
                    continue
                change = self._change(step, [name], [alone[name].reads])
                for written, entity in list(writes.items()):
                    found = written in alone.writes
                    if found and self._digest(alone.writes[written]) == self._digest(entity):
                        effects.writes[written] = writes.pop(written), change
                if name in events and self._said(alone.events) == self._said(events[name]):
                    del events[name]
                    effects.emitted[name] = change
                alone.end()
        if not (events or writes or cluster.answered):
            return
        joint = self._change(step, members, [execution.resolved[name] for name in members])
        for written, entity in writes.items():
            effects.writes[written] = entity, joint
        effects.emitted.update(dict.fromkeys(events, joint))
        effects.answered.update({self._ids[name]: joint for name in cluster.answered})

    def _change(self, step: Step, names: Sequence[str], reads: Sequence[Reads]) -> _Change:
        """A change that the actions of `names` make after these `reads`."""
        needs: Needs = {}
        agents = [self._ids[name] for name in names]
        for each, agent in zip(reads, agents, strict=True):
            self._add_needs(needs, each, step, agent)
            for source in _sources(each):
                _raise(needs, self._emitted[source])
        for agent in agents:
            needs = self._news(agent, needs)
        return (*needs.items(), *((agent, step) for agent in agents))

    def _said(self, events: Iterable[Event]) -> list[tuple[Position, bytes]]:
        return [(event.position, self._encode((event.kind, event.data))) for event in events]

    def _digest(self, entity: Entity | None) -> tuple[Position, int] | None:
        """The position, and a digest of the rest."""
        if entity is None:
            return None
        known = self._hashes.get(entity.name)
        # only `Entity.moved` keeps the same state object
        if known is None or known[0] is not entity.state:
            value = hash(self._encode((entity.kind, entity.state)))
            known = self._hashes[entity.name] = entity.state, value
        return entity.position, known[1]

    def _write(self, name: str, entity: Entity | None, change: _Change, step: Step) -> None:
        before = self._digests.pop(name, None)
        self._changes[name] = change
        after = self._digest(entity)
        if after is not None:
            self._digests[name] = after
        else:
            self._hashes.pop(name, None)
        if before is not None and (after is None or after[0] != before[0]):
            number = self._numbers.setdefault(name, len(self._numbers))
            self._left.leave(number, before[0], step, change)


@dataclass
class _Effects:
    """The effects of a step, by value."""

    writes: dict[str, tuple[Entity | None, _Change]] = field(default_factory=dict)
    emitted: dict[str, _Change] = field(default_factory=dict)
    answered: dict[AgentId, _Change] = field(default_factory=dict)


def _sources(reads: Reads) -> set[str]:
    return {event.source for events in reads.events.values() for event in events}


def _is_known(change: _Change, known: Needs, needs: Needs) -> bool:
    """Whether `known` or `needs` contains what `change` needs."""
    for agent, step in change:
        if known.get(agent, -1) < step and needs.get(agent, -1) < step:
            return False
    return True


def _raise(needs: Needs, others: Iterable[tuple[AgentId, Step]]) -> None:
    """Raise the steps in `needs` to those of `others`."""
    for agent, step in others:
        if needs.get(agent, -1) < step:
            needs[agent] = step
