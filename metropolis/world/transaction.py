"""What a world may write: the actions of one cluster, committed atomically."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import CORO_CREATED, getcoroutinestate
from math import ulp
from typing import Any

from metropolis.names import cut, format_position
from metropolis.rules.metrics import distance
from metropolis.types import CausalityError, MetropolisError, Position, Step
from metropolis.world.clusters import clusters
from metropolis.world.entities import AGENT, Entity, Event, check_kind, checked_position
from metropolis.world.state import State
from metropolis.world.view import Reach, View

Ask = Callable[[str, Any], Awaitable[Any]]
"""(agent, question) -> its answer."""


class Transaction:
    """The cluster whose actions `World.resolve` turns into writes; iterating yields its members."""

    def __init__(
        self,
        state: State,
        reach: Reach,
        seed: int,
        step: Step,
        actions: Mapping[str, Any],
        ask: Ask,
    ) -> None:
        self.step = step
        self.writes: dict[str, Entity | None] = {}
        """Entity -> its new value; None: removed."""
        self.events: list[Event] = []
        self.answered: set[str] = set()
        """The members that were asked, and so may have changed their minds."""
        self._asked: list[Coroutine[Any, Any, Any]] = []
        """The questions, some of which may not have been awaited."""
        self._ask, self._is_complete = ask, False
        self._members = {
            name: Member(self, state, reach, seed, name, action) for name, action in actions.items()
        }

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, name: str) -> Member:
        if name not in self._members:
            raise CausalityError(
                f"step {self.step}: the agent {name!r} is not in the cluster "
                f"{', '.join(map(repr, self._members))}; only members of a cluster act together"
            )
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members

    @property
    def members(self) -> Sequence[Member]:
        """The agents of this cluster."""
        return list(self)

    def end(self) -> None:
        """Drop the members: they refer to this object, and a cycle waits for garbage collection."""
        self._members.clear()

    def complete(self) -> None:
        """Refuse further acts: the world has resolved the cluster.

        Tasks that it has left behind may run while other clusters of the step wait. Raises
        MetropolisError if it has not awaited a question.
        """
        self._is_complete = True
        forgotten = [one for one in self._asked if getcoroutinestate(one) == CORO_CREATED]
        for question in forgotten:
            question.close()  # Python would warn of it as well
        if forgotten:
            raise MetropolisError(
                "it asked a question and did not await the answer; write await before member.ask, "
                "in an async resolve"
            )


class Member(View):
    """An agent of the cluster: its view, its action, and its writes.

    Its reads include the writes of this transaction so far.
    """

    _purpose = "Member"

    def __init__(
        self,
        transaction: Transaction,
        state: State,
        reach: Reach,
        seed: int,
        name: str,
        action: Any,
    ) -> None:
        super().__init__(state, reach, seed, transaction.step, name)
        self.action = action
        self._transaction = transaction
        self._added = 0

    def move(self, position: Position) -> None:
        """Move to `position`, at most the velocity away; visible from the next step on."""
        body = self._current_body().moved(position)
        position = body.position
        self._check_place(position)
        if not self._is_in_reach(position):
            far = distance(self._reach.metric, self.position, position, walk=True)
            raise CausalityError(
                f"{self._prefix()} moves from {format_position(self.position)} to "
                f"{format_position(position)}, {far:g} away: "
                f"{far - self._reach.max_velocity:g} further than the velocity "
                f"{self._reach.max_velocity:g}"
            )
        self._put(body)

    def write(self, entity: str | None = None, /, **state: Any) -> None:
        """Update keys of the state of `entity`; None: the agent's own body."""
        target = self._current_body() if entity is None else self._target(entity)
        self._put(replace(target, state={**target.state, **state}))

    def add(self, kind: str, position: Position | None = None, /, **state: Any) -> Entity:
        """Add a thing to the world, at most the velocity away; None: at the agent's position.

        Its unique name is made of the kind, the agent and the step. A name chosen by the world
        could already be in use out of reach. `position` has no name: `position=…` is a key of the
        state.
        """
        check_kind(kind, f"what {self._prefix()} adds")
        if kind == AGENT:
            raise MetropolisError(f"{self._prefix()} adds an agent; all agents exist from step 0")
        if "/" in kind:  # two agents could otherwise make the same name
            raise MetropolisError(f"{self._prefix()} adds a {kind!r}; a kind contains no /")
        name = f"{kind}/{self.name}/{self.step}/{self._added}"
        place = self.position if position is None else checked_position(position, name)
        self._check_place(place)
        self._check_write(f"a new {kind}", place)
        self._added += 1
        entity = Entity(name, place, kind, state)
        self._put(entity)
        return entity

    def remove(self, entity: str) -> None:
        """Remove a thing from the world."""
        if self._target(entity).kind == AGENT:
            raise MetropolisError(
                f"{self._prefix()} removes {entity!r}, an agent's body; only things can be removed"
            )
        self._check_open()
        self._transaction.writes[entity] = None

    def emit(self, kind: str, position: Position | None = None, /, **data: Any) -> None:
        """Emit an event that agents around `position` perceive in their next step.

        `position` has no name: `position=…` is a key of the data.
        """
        place = self.position if position is None else checked_position(position, kind)
        self._check_place(place)
        self._check_write(f"the event {kind!r}", place)
        self._check_open()
        self._transaction.events.append(Event(self.step, self.name, place, kind, data))

    def ask(self, other: str, question: Any) -> Coroutine[Any, Any, Any]:
        """Await the answer of the agent `other` (`Agent.answer`), within the joint radius.

        Their positions at the beginning of the step count, also if the world has moved them since.
        None if no agent object exists, as when actions come from outside.
        """
        asked = self._answer_of(other, question)
        self._transaction._asked.append(asked)
        return asked

    async def _answer_of(self, other: str, question: Any) -> Any:
        if not isinstance(other, str):
            raise MetropolisError(f"{self._prefix()} asks {cut(other)}; give an agent's name")
        self._check_open()
        partner = self._transaction[other]
        limit = self._reach.joint_radius
        if not self._reach.metric.perceives(self.position, partner.position, limit):
            far = distance(self._reach.metric, self.position, partner.position)
            raise CausalityError(
                f"{self._prefix()} asks {other!r}, {far:g} away when the step begins: "
                f"{far - limit:g} beyond the joint radius {limit:g}"
            )
        self._transaction.answered.add(other)
        return await self._transaction._ask(other, question)

    def _current_body(self) -> Entity:
        body = self._transaction.writes.get(self.name, self.me)
        assert body is not None
        return body

    def _target(self, name: str) -> Entity:
        if not isinstance(name, str):
            raise MetropolisError(f"{self._prefix()} writes {cut(name)}; give an entity's name")
        entity = self._known(name)
        if not self._is_in_reach(entity.position) and not self._perceives(entity):
            self._refuse(name)
        self._check_write(f"the entity {name!r}", entity.position, name)
        return entity

    def _lookup(self, name: str) -> Entity | None:
        if name in self._transaction.writes:
            return self._transaction.writes[name]
        return super()._lookup(name)

    def _with_writes(self, found: Iterable[Entity], radius: float) -> Iterable[Entity]:
        written, perceives = self._transaction.writes, self._reach.metric.perceives
        left = [entity for entity in found if entity.name not in written]
        for entity in written.values():
            if entity and perceives(self.position, entity.position, radius):
                left.append(entity)
        return sorted(left, key=lambda entity: entity.name)

    def _check_place(self, position: Position) -> None:
        flaw = self._reach.metric.flaw(position)
        if flaw is not None:
            raise MetropolisError(
                f"{self._prefix()} cannot put anything at {format_position(position)}: {flaw}"
            )

    def _check_write(self, what: str, position: Position, name: str | None = None) -> None:
        reach = self._reach
        if self._is_in_reach(position):
            return
        if name is not None:
            self.refused.add(name)
        far = distance(reach.metric, self.position, position, walk=True)
        raise CausalityError(
            f"{self._prefix()} writes {what} at {format_position(position)}, {far:g} away: "
            f"{far - reach.max_velocity:g} further than the velocity {reach.max_velocity:g}"
        )

    def _is_in_reach(self, position: Position) -> bool:
        """Whether `position` is at most the velocity away, but for the rounding of the sum."""
        rounding = 2 * ulp(max(map(abs, (*self.position, *position))))
        limit = self._reach.max_velocity + rounding
        return self._reach.metric.within(self.position, position, 0, limit)

    def _check_open(self) -> None:
        if self._transaction._is_complete:
            raise MetropolisError(
                f"{self._prefix()} acts after its step; World.resolve should wait for its tasks, "
                "and keep no member"
            )

    def _put(self, entity: Entity) -> None:
        self._check_open()
        self._transaction.writes[entity.name] = entity


def split_into_clusters(reach: Reach, positions: Sequence[Position]) -> Sequence[Sequence[int]]:
    """Split agents of one step into clusters, the same in every mode, as indices of `positions`.

    Agents that are dispatched together need not be near each other: lockstep dispatches all.
    """
    if len(positions) == 1:
        return [(0,)]
    return clusters(reach.metric, reach.cluster_radius, positions)
