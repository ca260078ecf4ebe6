"""A world as a Gymnasium `Env` for one agent; the other agents act by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium

from metropolis.adapters.environment import RENDER_MODES, RenderMode, WorldEnvironment
from metropolis.adapters.session import (
    ControlledAgent,
    Episode,
    Policy,
    PolicyAgent,
    RandomAgent,
    check_agent,
)
from metropolis.names import cut
from metropolis.types import MetropolisError
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_world_parts, seed_of


class SingleAgentWorld(WorldEnvironment, gymnasium.Env[Any, Any]):
    """One agent's environment; an episode is truncated after `max_cycles` steps, never terminated.

    Args:
        world: a world, or what `make_scenario` takes: a name or a file.
        agent: the agent that is controlled; None: the first body.
        others: a policy (agent, observation) -> action, or stateful agents, which are copied at
            every reset; None: the scenario's agents with its offline author, or random actions if
            it has none.
        agents, scenario_seed, max_cycles, render_mode: see `metropolis.parallel_env`.
    """

    metadata = {"render_modes": [*RENDER_MODES], "render_fps": 1}  # noqa: RUF012 -- Gymnasium's interface

    def __init__(
        self,
        world: World | str | Path,
        *,
        agent: str | None = None,
        others: Policy | Sequence[Agent] | None = None,
        agents: int | None = None,
        scenario_seed: int = 0,
        max_cycles: int | None = None,
        render_mode: RenderMode | None = None,
    ) -> None:
        super().__init__(world, agents, scenario_seed, max_cycles, render_mode)
        self._others = others
        if isinstance(others, Sequence):
            check_world_parts(self.world, others)
        elif others is not None and not callable(others):
            raise MetropolisError(
                f"others is {cut(others)}; it should be a function (agent, observation) -> action, "
                "or a list of metropolis.Agent"
            )
        self.observation_space = deepcopy(self.world.observation_space)
        self.action_space = deepcopy(self.world.action_space)
        if agent is not None:
            check_agent(self.world, agent, self._names)
        self.agent = self._names[0] if agent is None else agent

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode; `seed` is the world's, drawn from `np_random` if None.

        Raises MetropolisError on a wrong seed.
        """
        seed = None if seed is None else seed_of(seed)
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        self.close()
        agents = {**self._other_agents(), self.agent: ControlledAgent(self.agent)}
        self._episode = Episode(self.world, agents, chosen, options or {})
        return self._episode.observe(self.agent), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Run a step of all agents. Raises MetropolisError for an invalid action."""
        episode = self._running_episode()
        episode.act({self.agent: action})
        observation, reward = episode.observe(self.agent), episode.reward(self.agent)
        return observation, reward, False, episode.step >= self.max_cycles, {}

    def _other_agents(self) -> dict[str, Agent]:
        """The other agents, in their initial state."""
        others = self._others
        if others is None:
            own = {agent.name: agent for agent in self._make().agents}
            space = self.world.action_space
            return {name: own.get(name) or RandomAgent(name, space) for name in self._names}
        if callable(others):
            return {
                name: PolicyAgent(name, others, self.world.action_space) for name in self._names
            }
        if odd := ({agent.name for agent in others} | {self.agent}) ^ set(self._names):
            raise MetropolisError(
                f"the others do not match the world's bodies at {min(odd)!r}; there should be an "
                f"agent for every body but {self.agent!r}"
            )
        return {agent.name: deepcopy(agent) for agent in others}
