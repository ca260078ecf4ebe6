"""The dependencies by value of a run's agent-steps, found while its steps are recorded.

A step has two halves: every agent decides by itself, then the world resolves the actions of a
cluster. A decision depends on the agent's decision before, and on the last change of everything
that it read. A change depends on the decision of the agent whose action alone makes it, or else on
those of the whole cluster, and on the last changes of what the world read for it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from metropolis.store.execution import ClusterEffects, Execution
from metropolis.trace.schema import ValueDependencies
from metropolis.types import AgentId, Position, Step
from metropolis.workers.cluster_step import copied
from metropolis.world.base import World
from metropolis.world.cells import Cell, Cells
from metropolis.world.encoding import plain
from metropolis.world.entities import Entity, Event
from metropolis.world.state import Area, State
from metropolis.world.transaction import Transaction
from metropolis.world.view import Reads, View

Needs = dict[AgentId, Step]
"""Agent -> its latest step that is needed."""


_Change = tuple[tuple[AgentId, Step], ...]
"""What the effects of a step need, as `Needs`: there are many, and few need more than one agent."""


@dataclass(slots=True)
class _Left:
    """The places in a cell that an entity has left."""

    places: dict[Position, _Change]
    """Place -> the last time that it left."""
    latest: _Change
    step: Step
    """Of `latest`."""


_LeftPlaces = defaultdict[Cell, dict[str, _Left]]
"""Cell -> entity -> the places there that it has left; the entity that left last is last."""


class RecordedDependencies:
    """Takes the executions of all steps, in order."""

    def __init__(
        self, world: World, names: Sequence[str], entities: Sequence[Entity], seed: int
    ) -> None:
        """`entities` are those before the first step, which is 0."""
        self._world, self._reach, self._seed = world, world.reach, seed
        self._ids = {name: i for i, name in enumerate(names)}
        self._state = State(world.metric, world.perception_radius, entities)
        self._encode = msgspec.json.Encoder(enc_hook=plain).encode
        self._hashes: dict[str, tuple[Mapping[str, Any], int]] = {}
        """Entity -> a state of it, and the hash of its kind and state."""
        self._digests = {entity.name: self._digest(entity) for entity in entities}
        self._changes: dict[str, _Change] = {}
        """Entity -> its last change."""
        self._cells = Cells(world.metric, world.perception_radius)
        self._left: _LeftPlaces = defaultdict(dict)
        self._left_before: _LeftPlaces = defaultdict(dict)
        """The part of it that is due to the step before."""
        self._places: dict[Position, Position] = {}
        """The places that anybody has left: many leave the same."""
        self._emitted: dict[str, _Change] = {}
        """Agent -> its events of the step before."""
        self._answered: dict[AgentId, _Change] = {}
        """Agent -> what it answered to in the step before."""
        self._known: list[Needs] = [{} for _ in names]
        """By agent: what its steps so far depend on."""
        self._names = names
        self._checked: list[dict[Cell, Step]] = [{} for _ in names]
        """By agent: it knows when others left a cell up to this step."""
        self._looked: list[Container[Area]] = [() for _ in names]
        """By agent: the areas that it looked at in its last step."""
        self._offsets, self._writer, self._ago = array("q", [0]), array("i"), array("i")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_known = True

    def add(self, step: Step, executions: Sequence[Execution]) -> None:
        """Add a step of all agents."""
        self._is_known &= all(execution.clusters for execution in executions)
        if not self._is_known:
            return
        rows: dict[AgentId, Needs] = {}
        for execution in executions:
            for name, reads in execution.observed.items():
                agent = self._ids[name]
                looked, self._looked[agent] = self._looked[agent], reads.areas
                if agent not in self._answered and self._is_unchanged(reads, step, looked):
                    continue
                needs = self._needs(reads, step, agent, looked)
                for change in self._heard(name, reads, step, self._known[agent]):
                    _raise(needs, change)
                if agent in self._answered:
                    _raise(needs, self._answered[agent])
                rows[agent] = self._learn(agent, needs)
        effects = _Effects()
        for execution in executions:
            for cluster in execution.clusters:
                self._find(effects, step, cluster, execution)
        self._left_before = defaultdict(dict)
        for name, (entity, change) in effects.writes.items():
            self._write(name, entity, change, step)
        self._emitted, self._answered = effects.emitted, effects.answered
        for execution in executions:
            if execution.writes or execution.events:
                self._state.commit(step, execution.writes, execution.events)
        self._state.collect(step + 1)
        for agent in range(len(self._known)):
            if row := rows.get(agent):
                for writer in sorted(row):
                    self._writer.append(writer)
                    self._ago.append(step - row[writer])
            self._offsets.append(len(self._writer))

    def result(self) -> ValueDependencies | None:
        """The dependencies so far; None if executions lacked what was read."""
        if not self._is_known:
            return None
        writer, ago = (np.frombuffer(column, np.int32) for column in (self._writer, self._ago))
        return ValueDependencies(np.frombuffer(self._offsets, np.int64), writer, ago)

    def close(self) -> None:
        """Close the event loop."""
        if self._loop is not None:
            self._loop.close()

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
        left = self._left_before
        for area in reads.areas if left else ():
            if any(cell in left for cell in self._cells.near(*area, left)):
                return False
        return not (self._emitted and any(reads.events.values()))

    def _needs(
        self, reads: Reads, step: Step, agent: AgentId, looked: Container[Area] = ()
    ) -> Needs:
        """What the last changes of all that was read need, except of some that the agent knows.

        In the areas that were `looked` at in the step before, only its changes are not known.
        """
        found = {self._changes.get(name) for name in reads.entities}
        for area, versions in reads.areas.items():
            is_new = area not in looked
            for since, entity in versions:
                if (is_new or since == step) and entity is not None:
                    found.add(self._changes.get(entity.name))
            found.update(self._gone(area, versions, agent, is_new=is_new))
        needs: Needs = {}
        for change in found:
            if change is not None:
                _raise(needs, change)
        return needs

    def _gone(
        self, area: Area, versions: Sequence[Any], agent: AgentId, *, is_new: bool
    ) -> Iterable[_Change]:
        """When those that are not among `versions` left the area, unless the agent knows that.

        If the area is not new to the agent, only those that left in the step before count.
        """
        seen: set[str] | None = None
        own, known, checked = self._names[agent], self._known[agent], self._checked[agent]
        left = self._left if is_new else self._left_before
        for cell in self._cells.near(*area, left):
            there = left.get(cell, {})
            since = checked.get(cell, -1) if is_new else -1
            newest: Step | None = None
            for name in reversed(there):
                gone = there[name]
                if gone.step <= since:
                    break
                newest = gone.step if newest is None else newest
                # Who knows the last time that an entity left knows the times before.
                if name == own or _is_known(gone.latest, known, agent):
                    continue
                newest = gone.step - 1
                if seen is None:
                    seen = {entity.name for _, entity in versions if entity is not None}
                if name in seen:
                    continue
                for place, change in gone.places.items():
                    if _is_known(change, known, agent):  # faster than the metric
                        continue
                    if self._reach.metric.perceives(area[0], place, area[1]):
                        yield change
            if is_new and newest is not None:
                checked[cell] = newest

    def _heard(self, name: str, reads: Reads, step: Step, known: Needs) -> Iterable[_Change]:
        """The events that make a difference to the agent's observation, unless they are `known`."""
        if not self._emitted:
            return
        unheard: set[str] = set()
        observed = None
        for source in sorted(_sources(reads)):
            change = self._emitted.get(source)
            if change is None or _is_known(change, known, self._ids[name]):
                continue
            if observed is None:
                observed = self._observed(name, step, set())
            if self._observed(name, step, unheard | {source}) == observed:
                unheard.add(source)
            else:
                yield change

    def _observed(self, name: str, step: Step, unheard: Set[str]) -> Any:
        """What an agent observes without the events of `unheard`, in a form that compares."""
        view = _Deaf(self._state, self._reach, self._seed, step, name)
        view.unheard = unheard
        try:
            return self._encode(self._world.observe(view))
        except Exception:  # noqa: BLE001 -- it makes a difference
            return object()

    def _learn(self, agent: AgentId, needs: Needs) -> Needs:
        """The part of `needs` that the agent's steps so far do not depend on."""
        known = self._known[agent]
        new = {
            other: step
            for other, step in needs.items()
            if other != agent and step > known.get(other, -1)
        }
        known |= new
        return new

    # --- what was changed

    def _find(
        self, effects: _Effects, step: Step, cluster: ClusterEffects, execution: Execution
    ) -> None:
        """Add the effects of a cluster, by value."""
        members = cluster.members
        if not (execution.events or cluster.writes or cluster.answered):
            return
        events = {
            name: of
            for name in members
            if (of := [event for event in execution.events if event.source == name])
        }
        writes = {
            name: execution.writes[name]
            for name in cluster.writes
            if self._digest(execution.writes[name]) != self._digests.get(name)
        }
        if not (events or writes or cluster.answered):
            return
        joint = self._change(step, members, [execution.resolved[name] for name in members])
        if len(members) > 1 and not cluster.answered:
            for name in members:
                if name not in events and not writes:
                    continue
                alone = self._alone(step, name, execution.actions[name])
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
        for written, entity in writes.items():
            effects.writes[written] = entity, joint
        effects.emitted.update(dict.fromkeys(events, joint))
        effects.answered.update({self._ids[name]: joint for name in cluster.answered})

    def _change(self, step: Step, names: Sequence[str], reads: Sequence[Reads]) -> _Change:
        """A change that the actions of `names` make after these `reads`."""
        needs: Needs = {}
        known = [self._known[self._ids[name]] for name in names]
        for each, name in zip(reads, names, strict=True):
            _raise(needs, self._needs(each, step, self._ids[name]).items())
            for source in _sources(each):
                _raise(needs, self._emitted[source])
        needs = {b: t for b, t in needs.items() if all(t > of.get(b, -1) for of in known)}
        return (*(needs | {self._ids[name]: step for name in names}).items(),)

    def _alone(self, step: Step, name: str, action: Any) -> Transaction | None:
        """What the world makes of one agent's action; None: it cannot, without the others."""
        asked = False

        async def ask(_name: str, _question: Any) -> Any:
            nonlocal asked
            asked = True
            raise LookupError("the answer is not known")

        actions = {name: copied(action)}
        cluster = Transaction(self._state, self._reach, self._seed, step, actions, ask)
        try:
            resolving = self._world.resolve(cluster)
            if resolving is not None:
                self._loop = self._loop or asyncio.new_event_loop()
                self._loop.run_until_complete(asyncio.wait_for(resolving, None))
        except Exception:  # noqa: BLE001 -- as of an action that needs the others
            return None
        return None if asked else cluster

    def _said(self, events: Iterable[Event]) -> list[tuple[Position, bytes]]:
        return [(event.position, self._encode((event.kind, event.data))) for event in events]

    def _digest(self, entity: Entity | None) -> tuple[Position, int] | None:
        """The position, and a digest of the rest."""
        if entity is None:
            return None
        known = self._hashes.get(entity.name)
        if known is None or known[0] is not entity.state:  # only `moved` shares it
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
            place = self._places.setdefault(before[0], before[0])
            for left in (self._left, self._left_before):
                there = left[self._cells.of(place)]
                gone = there.pop(name) if name in there else _Left({}, change, step)
                there[name] = gone
                gone.places[place] = gone.latest = change
                gone.step = step


class _Deaf(View):
    """A view without some agents' events."""

    unheard: Set[str] = frozenset()

    def events(self, kind: str | None = None) -> list[Event]:
        return [event for event in super().events(kind) if event.source not in self.unheard]


@dataclass
class _Effects:
    """The effects of a step, by value."""

    writes: dict[str, tuple[Entity | None, _Change]] = field(default_factory=dict)
    emitted: dict[str, _Change] = field(default_factory=dict)
    answered: dict[AgentId, _Change] = field(default_factory=dict)


def _sources(reads: Reads) -> set[str]:
    return {event.source for events in reads.events.values() for event in events}


def _is_known(change: _Change, known: Needs, own: AgentId) -> bool:
    """Whether `known` contains what `change` needs, except of the agent `own`."""
    for agent, step in change:  # noqa: SIM110 -- `all` of a generator takes twice as long
        if agent != own and known.get(agent, -1) < step:
            return False
    return True


def _raise(needs: Needs, others: Iterable[tuple[AgentId, Step]]) -> None:
    """Raise the steps in `needs` to those of `others`."""
    for agent, step in others:
        if needs.get(agent, -1) < step:
            needs[agent] = step
