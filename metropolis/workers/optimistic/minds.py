"""Minds of agents that run ahead: the object while one execution uses it, and its saved state.

Agents change in place. An execution takes the object; if it is aborted, the object is discarded and
another one is made from the saved state: code of the aborted execution may still run in a thread.
A resolution takes only the minds of members that answer; the others are the same after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from metropolis.types import AgentId, MetropolisError, Position, Step
from metropolis.workers.optimistic.digests import mind_digest
from metropolis.world.base import Agent
from metropolis.world.parts import Parts, PartsCache, from_parts
from metropolis.world.saved_check import Sample, check_names, check_saved
from metropolis.world.saving import copies_of, copy_of, restore, restore_parts, save_parts


@dataclass(eq=False)
class Mind:
    """A mind between two halves of steps."""

    agent: Agent | None
    """None: an execution has taken it."""
    saved: Parts
    draws: Any = None
    """The state of `Agent.random`, if it was used in this step."""
    intents: dict[Position, list[Position]] = field(default_factory=dict)
    """What `Agent.intent` returned, by position."""

    @cached_property
    def digest(self) -> Any:
        """Equal for equal minds."""
        return mind_digest(self.saved)


class Minds:
    """Makes, saves and restores the minds of one run's agents."""

    def __init__(self, agents: Sequence[Agent], seed: int) -> None:
        """Raises MetropolisError if an agent cannot be copied or saved."""
        self._seed = seed
        self._chunks: list[PartsCache] = [PartsCache() for _ in agents]
        self._states, self._intents = Sample(), Sample()
        self._first = copies_of(agents)
        """Untouched by executions."""
        self._own = agents
        self.final = [Mind(agent, self.save(i, agent)) for i, agent in enumerate(agents)]
        """After the last final step of each agent."""
        self.committed = CommittedMinds(self.final)

    def save(self, number: AgentId, agent: Agent, before: Parts | None = None) -> Parts:
        """The state of `agent`; the object `before` if it is equal, which saves memory.

        Raises MetropolisError if it cannot be restored; a sample of the states is checked.
        """
        saved = save_parts(agent, self._chunks[number])
        check_names(agent)
        if before is not None and saved == before:
            return before
        if self._states.takes(type(agent)):
            check_saved(agent, from_parts(saved), exact=True)
        return saved

    @contextmanager
    def unchanged_by_intent(self, number: AgentId, agent: Agent) -> Iterator[None]:
        """Raise MetropolisError if the block, which calls `intent`, has changed the agent.

        A sample is checked.
        """
        is_checked = self._intents.takes(type(agent))
        # not the mind's: a set that was restored may yield its items in another order
        before = save_parts(agent, self._chunks[number]) if is_checked else None
        yield
        if is_checked and save_parts(agent, self._chunks[number]) != before:
            raise MetropolisError(
                f"step {agent.step}, agent {agent.name!r} ({type(agent).__name__}): its intent() "
                "changes it; it may only tell where the agent expects to be"
            )

    def of(self, number: AgentId, agent: Agent, before: Parts) -> Mind:
        """The mind of `agent` in the middle of its step; `before`: an earlier state of it."""
        draws = agent._random.getstate() if agent._drawn_at == agent.step else None
        return Mind(agent, self.save(number, agent, before), draws)

    def take(self, number: AgentId, mind: Mind, step: Step | None = None) -> Agent:
        """The agent with `mind`, for one execution; `step`: in the middle of that step."""
        agent, mind.agent = mind.agent, None
        if agent is not None:
            return agent
        agent = copy_of(self._first[number])
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
                restore(own, from_parts(mind.saved))


class CommittedMinds(Mapping[int, Any]):
    """The minds of all agents as of their last commits to the store, as plain data."""

    def __init__(self, minds: Sequence[Mind]) -> None:
        self._saved = [mind.saved for mind in minds]

    def commit(self, number: AgentId, saved: Parts) -> None:
        """The store is about to commit the agent's step."""
        self._saved[number] = saved

    def __getitem__(self, number: int) -> Any:
        return from_parts(self._saved[number])

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._saved)))

    def __len__(self) -> int:
        return len(self._saved)
