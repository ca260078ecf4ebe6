"""A world as a PettingZoo `ParallelEnv`: all agents are controlled from outside."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from metropolis.adapters.environment import RENDER_MODES, RenderMode, WorldEnvironment
from metropolis.adapters.session import ControlledAgent, Episode, check_agent
from metropolis.types import MetropolisError
from metropolis.world.base import World
from metropolis.world.checks import seed_of

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise MetropolisError(
        "PettingZoo is not installed; pip install 'metropolis[pettingzoo]'"
    ) from error

Observations = dict[str, Any]
Infos = dict[str, dict[str, Any]]


class ParallelWorld(WorldEnvironment, ParallelEnv[str, Any, Any]):
    """All agents act in parallel; none terminates, and all are truncated after `max_cycles` steps.

    Rewards come from `World.reward`. The seed of `reset` is the world's; if None, it is drawn from
    the generator that the last given seed initialised.

    Args:
        world: a world, or what `make_scenario` takes: a name or a file.
        agents: number of agents of a world given by name; None: the world's default.
        scenario_seed: the seed with which a world given by name is made; runs have their own.
        max_cycles: steps of an episode; None: the scenario's default.
        render_mode: None or `ansi`.
    """

    def __init__(
        self,
        world: World | str | Path,
        *,
        agents: int | None = None,
        scenario_seed: int = 0,
        max_cycles: int | None = None,
        render_mode: RenderMode | None = None,
    ) -> None:
        super().__init__(world, agents, scenario_seed, max_cycles, render_mode)
        self.possible_agents = self._names
        self.metadata = {"name": self.world.name, "render_modes": [*RENDER_MODES]}
        self.agents: list[str] = []
        self.observation_spaces: dict[str, gymnasium.Space[Any]] = {}
        self.action_spaces: dict[str, gymnasium.Space[Any]] = {}
        self._draw = np.random.default_rng()

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Infos]:
        """Start a new episode.

        Raises MetropolisError on a wrong seed, and if it changes the set of agents.
        """
        if seed is not None:
            seed = seed_of(seed)
            self._draw = np.random.default_rng(seed)
        chosen = int(self._draw.integers(2**31)) if seed is None else seed
        self.close()
        controlled = {name: ControlledAgent(name) for name in self.possible_agents}
        self._episode = Episode(self.world, controlled, chosen, options or {})
        self.agents = list(self.possible_agents)
        return self._observe(), {name: {} for name in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[Observations, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Run a step of all agents. Raises MetropolisError on a missing or invalid action."""
        episode = self._running_episode()
        for name in actions:
            check_agent(self.world, name, self.possible_agents)
        if missing := [name for name in self.agents if name not in actions]:
            raise MetropolisError(f"step {episode.step}: there is no action for {missing[0]!r}")
        episode.act({name: actions[name] for name in self.agents})
        acted, over = self.agents, episode.step >= self.max_cycles
        observations = self._observe()
        if over:
            self.agents = []
        return (
            observations,
            {name: episode.reward(name) for name in acted},
            dict.fromkeys(acted, False),
            dict.fromkeys(acted, over),
            {name: {} for name in acted},
        )

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """The agent's copy of the space, which can be seeded."""
        return self._own(self.observation_spaces, agent, self.world.observation_space)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """The agent's copy of the space, which can be seeded."""
        return self._own(self.action_spaces, agent, self.world.action_space)

    def _observe(self) -> Observations:
        return {name: self._running_episode().observe(name) for name in self.agents}

    def _own(
        self, spaces: dict[str, gymnasium.Space[Any]], agent: str, space: gymnasium.Space[Any]
    ) -> gymnasium.Space[Any]:
        check_agent(self.world, agent, self.possible_agents)
        if agent not in spaces:
            spaces[agent] = deepcopy(space)
        return spaces[agent]


parallel_env = ParallelWorld
"""PettingZoo's naming convention."""
