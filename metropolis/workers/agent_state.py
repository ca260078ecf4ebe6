"""The minds of agents between a worker and the store, which is told only what has changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from metropolis.types import AgentId
from metropolis.world.base import Agent
from metropolis.world.parts import Changes, Encoded, Parts, changes, whole
from metropolis.world.saving import restore, save_parts


class Minds:
    """Of the agents of one worker.

    What the worker knows of a mind in the store counts as long as it has committed the agent's last
    step; claims bring all others.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents
        self._stored: dict[AgentId, Parts] = {}
        self._encoded: dict[AgentId, Encoded] = defaultdict(dict)

    def take(self, minds: Mapping[AgentId, Parts]) -> None:
        """Give the agents the minds that a claim has brought."""
        for agent, parts in minds.items():
            restore(self._agents[agent], whole(parts))
            self._stored[agent] = parts

    def changes(self, agent: AgentId) -> Changes:
        """What a commit has to tell of the agent's mind; assumes that it succeeds."""
        now = save_parts(self._agents[agent], self._encoded[agent])
        before, self._stored[agent] = self._stored[agent], now
        return changes(before, now)
