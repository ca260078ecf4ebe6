"""A world driven from outside, one step of all agents at a time.

Some agents are controlled from outside; the others act as in any run. The result equals that of a
lockstep run with the same actions, because the same worker executes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any
from weakref import finalize

import gymnasium
import numpy as np

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.maps.map import nearest_tile
from metropolis.names import format_position, shortened
from metropolis.runtime.live.setup import reset
from metropolis.runtime.live.single_use import mark_used
from metropolis.types import Dispatch, MetropolisError
from metropolis.workers.event_loop import complete
from metropolis.workers.local import LocalWorker
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_options
from metropolis.world.entities import AGENT, Entity
from metropolis.world.spaces import misfit
from metropolis.world.state import State
from metropolis.world.view import View

Policy = Callable[[str, Any], Any]
"""(agent, observation) -> action."""


class ControlledAgent(Agent):
    """An agent controlled from outside."""

    def __init__(self, name: str) -> None:
        self.name, self.action = name, None

    async def proceed(self, observation: Any, llm: Any) -> Any:  # noqa: ARG002
        """Return the action set from outside."""
        return self.action

    async def answer(self, question: Any, llm: Any) -> None:  # noqa: ARG002
        """Return None: there is no agent that could answer."""
        return None


class PolicyAgent(ControlledAgent):
    """An agent controlled by `policy`, whose actions are in `space`."""

    def __init__(self, name: str, policy: Policy, space: gymnasium.Space[Any]) -> None:
        super().__init__(name)
        self.policy, self.space = policy, space

    async def proceed(self, observation: Any, llm: Any) -> Any:  # noqa: ARG002
        """Return the policy's action. Raises MetropolisError if it is outside of the space."""
        action = self.policy(self.name, observation)
        if action not in self.space:
            what = misfit("the action that others returned", action, self.space)
            raise MetropolisError(f"agent {self.name!r}: {what}")
        return action


class RandomAgent(ControlledAgent):
    """An agent that acts at random: it samples the action space."""

    def __init__(self, name: str, space: gymnasium.Space[Any]) -> None:
        super().__init__(name)
        self.space = deepcopy(space)

    async def proceed(self, observation: Any, llm: Any) -> Any:  # noqa: ARG002
        """Return an action sampled for (seed, agent, step)."""
        self.space.seed(self.random.getrandbits(31))
        return self.space.sample()


class Episode:
    """One episode of a world, with its agents in the order of the bodies."""

    def __init__(
        self,
        world: World,
        agents: Mapping[str, Agent],
        seed: int,
        options: Mapping[str, Any],
    ) -> None:
        check_options(options)
        self.world, self.step = world, 0
        entities = reset(world, seed, options)
        self.names = bodies_of(entities)
        if set(self.names) != set(agents):
            raise MetropolisError(
                f"the world {world.name!r} has other agents for the seed {seed} than before; "
                "World.reset should return the same bodies for every seed"
            )
        mark_used(agents.values())
        self._seed, self._agents = seed, agents
        self._state = State(world.metric, world.perception_radius, entities)
        self._client = Client(Scripted(world.author))  # needs no close
        ordered = [agents[name] for name in self.names]
        self._worker = LocalWorker(world, ordered, self._client, seed)
        self._loop = asyncio.new_event_loop()
        self.close = finalize(self, _free, self._worker, self._loop)
        """Free the threads and the event loop; also called on garbage collection."""

    def observe(self, name: str) -> Any:
        """Return the observation of `name`, as a copy that the caller may change."""
        return copy_containers(self.world.observe(self._view(name)))

    def reward(self, name: str) -> float:
        """Return the reward of `name` for its last step."""
        return float(self.world.reward(self._view(name)))

    def act(self, actions: Mapping[str, Any]) -> None:
        """Run a step. Raises MetropolisError for an action outside the action space."""
        for name, action in actions.items():
            agent = self._agents[name]
            if action not in self.world.action_space:
                raise MetropolisError(
                    f"step {self.step}, agent {name!r}: "
                    f"{misfit('the action', action, self.world.action_space)}"
                )
            assert isinstance(agent, ControlledAgent)
            agent.action = action
        self.world.seal()
        try:
            all_agents = Dispatch(self.step, tuple(range(len(self.names))))
            execution = complete(self._loop, self._worker.run(all_agents, self._state))
        finally:
            self.world.unseal()
        self.step += 1
        self._state.commit(execution.step, execution.writes, execution.events)
        self._state.collect(self.step)

    def entities(self) -> list[Entity]:
        """Return all current entities, ordered by name."""
        return self._state.at(self.step)[0]

    def _view(self, name: str) -> View:
        return View(self._state, self.world.reach, self._seed, self.step, name)


def _free(worker: LocalWorker, loop: asyncio.AbstractEventLoop) -> None:
    worker.close()
    loop.close()


def check_agent(world: World, name: str, names: Sequence[str]) -> None:
    """Raise MetropolisError unless `name` is among the `names` of the world's agents."""
    if name not in names:
        raise MetropolisError(
            f"the world {world.name!r} has no agent {name!r}; there are {shortened(names, 9)}"
        )


def bodies_of(entities: Sequence[Entity]) -> list[str]:
    """The names of the agents whose bodies are among `entities`."""
    return [entity.name for entity in entities if entity.kind == AGENT]


def copy_containers(value: Any) -> Any:
    """`value` with all its containers copied."""
    if isinstance(value, Mapping):
        return {key: copy_containers(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(copy_containers(item) for item in value)
    return value.copy() if isinstance(value, np.ndarray) else value


def text_map(world: World, entities: Sequence[Entity]) -> str:
    """The agents' positions for people: the map with each agent's initial, then a list."""
    bodies = [entity for entity in entities if entity.kind == AGENT]
    lines = [f"{body.name} at {format_position(body.position)}" for body in bodies]
    if world.map is None:
        return "\n".join(lines)
    rows = [["#" if wall else "." for wall in row] for row in world.map.walls]
    for body in bodies:
        x, y = tile = nearest_tile(body.position)
        if world.map.contains(tile):
            rows[y][x] = body.name[0]
    return "\n".join(["".join(row) for row in rows] + lines)
