"""Checkpoints of a run in progress.

A checkpoint of step F is planned before any agent has reached F. Each agent's mind is saved when
the agent commits step F - 1; the world is read when the floor reaches F (versions make that exact).
So all agents are at the same step, and a run resumed there equals a run begun there. Runs in memory
and runs in a store write the same files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from metropolis.runtime.folder.checkpoint import Checkpoint, Checkpoints, Past
from metropolis.store.base import Store
from metropolis.types import AgentId, Step
from metropolis.workers.leases import retry
from metropolis.world.base import Agent
from metropolis.world.entities import Entity, Event
from metropolis.world.saving import save
from metropolis.world.state import State


class Source(Protocol):
    """The source of worlds and minds; see `metropolis.store.base.Store`."""

    def keep_minds(self, step: Step) -> bool:
        """Save every agent's mind on arrival at `step`; False: an agent is already there."""

    def kept_minds(self) -> Mapping[AgentId, Any]:
        """The minds at the step passed to `keep_minds`, once all agents have reached it."""

    def minds(self) -> Mapping[AgentId, Any]:
        """The current minds; all agents are at one step, and none is running."""

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """What `step` sees; `step` is the floor."""


class InMemory:
    """A run in this process's memory."""

    def __init__(self, agents: Sequence[Agent], state: State) -> None:
        self._agents, self._state = agents, state
        self._newest = state.first_step
        self._step: Step | None = None
        self._kept: dict[AgentId, Any] = {}
        self.world = state.at

    def commit(self, step: Step, agents: Iterable[AgentId]) -> None:
        """`agents` have committed `step` and have not begun the next one."""
        self._newest = max(self._newest, step + 1)
        if step + 1 == self._step:
            self._kept |= {agent: save(self._agents[agent]) for agent in agents}

    def keep_minds(self, step: Step) -> bool:
        """See Source."""
        self._kept = {}
        self._step = step if step > self._newest else None
        return self._step is not None

    def kept_minds(self) -> Mapping[AgentId, Any]:
        """See Source."""
        return self._kept

    def minds(self) -> Mapping[AgentId, Any]:
        """See Source."""
        return {number: save(agent) for number, agent in enumerate(self._agents)}


class Fenced(Protocol):
    """The holder of the lease of a run in a store."""

    def keep_minds(self, step: Step) -> bool:
        """See Store.keep_minds."""


class InStore:
    """A run in a store; `holder` has its lease."""

    def __init__(self, agents: int, store: Store, holder: Fenced) -> None:
        self._agents, self._store = agents, store
        self.keep_minds = holder.keep_minds

    def kept_minds(self) -> Mapping[AgentId, Any]:
        """See Source."""
        return retry(self._store.kept_minds)

    def minds(self) -> Mapping[AgentId, Any]:
        """See Source."""
        return retry(self._store.minds, range(self._agents))

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """See Source."""
        return retry(self._store.world, step)


class Checkpointer:
    """Writes a checkpoint every `every_wall_s`, and one of the last step."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        names: Sequence[str],
        source: Source,
        last_step: Step,
        every_wall_s: float,
    ) -> None:
        self._checkpoints, self._names, self._source = checkpoints, names, source
        self._last, self._every_wall_s = last_step, every_wall_s
        self._due_wall_s = time.monotonic() + every_wall_s
        self._ahead = 1
        self.step = last_step
        """The step of the next checkpoint."""

    def plan(self, newest_step: Step) -> None:
        """If a checkpoint is due, plan it for a step that no agent has reached.

        `newest_step` is the greatest step known to be reached; agents elsewhere may be further
        ahead.
        """
        aim = newest_step + self._ahead
        if self.step < self._last or aim >= self._last or time.monotonic() < self._due_wall_s:
            return
        if self._source.keep_minds(aim):
            self.step, self._ahead = aim, 1
        else:
            self._ahead *= 2

    def write(self, past: Past, now_s: float) -> None:
        """Write the checkpoint of `step`, now the floor; `now_s` is the run's clock."""
        entities, events = self._source.world(self.step)
        at_last = self.step == self._last
        minds = self._source.minds() if at_last else self._source.kept_minds()
        agents = {name: minds[number] for number, name in enumerate(self._names)}
        self._checkpoints.add(Checkpoint(self.step, entities, events, agents, now_s, past))
        self.step = self._last
        self._due_wall_s = time.monotonic() + self._every_wall_s
