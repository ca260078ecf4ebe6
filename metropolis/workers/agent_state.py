"""Transfer of agents' minds between a worker and the store, which receives only changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from metropolis.types import AgentId
from metropolis.world.base import Agent
from metropolis.world.parts import Changes, Parts, PartsCache, changed_parts, from_parts
from metropolis.world.saved_check import Sample, check_saved
from metropolis.world.saving import copy_of, restore, save_parts


class Minds:
    """The minds of one worker's agents.

    The worker's copy of a stored mind is valid while this worker has committed the agent's last
    step with a claim that had not expired; claims contain all other minds.
    """

    def __init__(self, agents: list[Agent]) -> None:
        """Keep the state of `agents`, which have not run any step."""
        self._agents = agents
        self._first: dict[AgentId, Agent] = {}
        """Copies of the agents from before their first step in this worker."""
        self._sample = Sample()
        self._stored: dict[AgentId, Parts] = {}
        self._chunks: dict[AgentId, PartsCache] = defaultdict(PartsCache)

    def take(self, minds: Mapping[AgentId, Parts]) -> None:
        """Restore the agents' minds from a claim.

        A worker may have begun a step whose claim it lost. So the restored agent is a new object:
        the old one has caches of the lost state, and its code may still run in a thread. Raises
        MetropolisError if the agent cannot be copied.
        """
        for agent, parts in minds.items():
            if agent in self._first:
                self._agents[agent] = copy_of(self._first[agent])
            else:
                self._first[agent] = copy_of(self._agents[agent])
            restore(self._agents[agent], from_parts(parts))
            self._stored[agent] = parts

    def changes(self, agent: AgentId) -> Changes:
        """Changes of the agent's mind to commit; assumes that the commit succeeds.

        Raises MetropolisError if it cannot be restored; a sample is checked.
        """
        of = self._agents[agent]
        now = save_parts(of, self._chunks[agent])
        if self._sample.takes(type(of)):
            check_saved(of, from_parts(now))
        before, self._stored[agent] = self._stored[agent], now
        return changed_parts(before, now)
