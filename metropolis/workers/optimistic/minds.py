"""Minds of agents that run ahead: the object while one execution uses it, and its saved state.

Agents change in place. An execution takes the object; if it is aborted, the object is discarded and
another one is made from the saved state: code of the aborted execution may still run in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

from metropolis.types import AgentId, Step
from metropolis.world.base import Agent
from metropolis.world.parts import ChunkCache, Parts, from_parts
from metropolis.world.saving import restore, restore_parts, save_parts


@dataclass(eq=False)
class Mind:
    """A mind between two halves of steps."""

    agent: Agent | None
    """None: an execution has taken it."""
    saved: Parts | None = None
    draws: Any = None
    """The state of `Agent.random`, if it was used in this step."""


class Minds:
    """Makes, saves and restores the minds of one run's agents."""

    def __init__(self, agents: Sequence[Agent], seed: int) -> None:
        """Raises MetropolisError if an agent cannot be saved."""
        self._seed = seed
        self._chunks: list[ChunkCache] = [{} for _ in agents]
        self._first = deepcopy(agents)
        """Untouched by executions."""
        self._own = agents
        self.final = [Mind(agent, self.save(i, agent)) for i, agent in enumerate(agents)]
        """After the last committed step of each agent."""

    def save(self, number: AgentId, agent: Agent, before: Parts | None = None) -> Parts:
        """The state of `agent`; the object `before` if it is equal, which saves memory."""
        saved = save_parts(agent, self._chunks[number])
        return before if saved == before and before is not None else saved

    def keep(self, number: AgentId, mind: Mind, agent: Agent, saved: Parts | None = None) -> None:
        """Save `mind`, which is that of `agent` now, unless it is saved; `saved`: its state."""
        if mind.saved is None:
            mind.saved = self.save(number, agent) if saved is None else saved
            mind.draws = agent._random.getstate() if agent._drawn_at == agent.step else None

    def take(self, number: AgentId, mind: Mind, step: Step | None = None) -> Agent:
        """The agent with `mind`, for one execution; `step`: in the middle of that step."""
        agent, mind.agent = mind.agent, None
        if agent is not None:
            return agent
        assert mind.saved is not None
        agent = deepcopy(self._first[number])
        restore_parts(agent, mind.saved, self._chunks[number])
        if step is not None:
            agent.begin_step(self._seed, step)
            if mind.draws is not None:
                agent._random, agent._drawn_at = Random(), step
                agent._random.setstate(mind.draws)
        return agent

    def end(self) -> None:
        """Leave the final minds in the agents that the run was given."""
        for own, mind in zip(self._own, self.final, strict=True):
            if mind.agent is not own:
                assert mind.saved is not None
                restore(own, from_parts(mind.saved))


class CommittedMinds(Mapping[int, Any]):
    """The minds of all agents as of their last commits to the store, as plain data."""

    def __init__(self, minds: Sequence[Mind]) -> None:
        self._saved = [mind.saved for mind in minds]

    def commit(self, number: AgentId, saved: Parts) -> None:
        """The store is about to commit the agent's step."""
        self._saved[number] = saved

    def __getitem__(self, number: int) -> Any:
        saved = self._saved[number]
        assert saved is not None
        return from_parts(saved)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._saved)))

    def __len__(self) -> int:
        return len(self._saved)
