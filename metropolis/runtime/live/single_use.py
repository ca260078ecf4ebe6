"""Agents and worlds that a run has changed are refused by other runs.

A run changes its agents, so an agent belongs to one run only. A world is initialized by its `reset`
and can be reused, unless a run or another `reset` has changed its attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from metropolis.types import MetropolisError
from metropolis.world.base import Agent, World
from metropolis.world.digest import digest


def check_unused(agents: Iterable[Agent]) -> None:
    """Raise MetropolisError if one of `agents` has been used in a run."""
    for agent in agents:
        if agent._used_in_run:
            raise MetropolisError(
                f"the agent {agent.name!r} was used in a run, which has changed it; make new "
                "agents for another run, or deepcopy these before the first one"
            )


def mark_used(agents: Collection[Agent]) -> None:
    """Mark `agents` as used in a run. Raises MetropolisError, see `check_unused`."""
    check_unused(agents)
    for agent in agents:
        agent._used_in_run = True


class SingleUse:
    """The world and the agents of one simulation.

    Raises MetropolisError if an earlier run has changed them. Attributes that begin with an
    underscore are caches.
    """

    def __init__(self, world: World, agents: Sequence[Agent]) -> None:
        check_unused(agents)
        if (changed := vars(world).get("_changed")) is not None:
            raise MetropolisError(
                f"an earlier run has changed the world {world.name!r} (its attribute {changed!r}); "
                "make a new one for another run, and write what changes to entities"
            )
        self._world, self._agents, self._before = world, agents, _digests(world)
        self._has_agents = self._runs = False

    def claim_agents(self) -> None:
        """Mark the agents as used by this simulation, which may change them."""
        if not self._has_agents:
            mark_used(self._agents)
            self._has_agents = True

    def start(self) -> None:
        """Start the run, which seals the world.

        Raises MetropolisError if the world was changed meanwhile.
        """
        self.claim_agents()
        if (changed := self._difference()) is not None:
            raise MetropolisError(
                f"the world {self._world.name!r} has changed since the simulation was made (its "
                f"attribute {changed!r}); make a world for each simulation"
            )
        self._world.seal()
        self._runs = True

    def end(self) -> None:
        """End the run, if it was started: unseal the world, and record what has changed."""
        if not self._runs:
            return
        self._world.unseal()
        if (changed := self._difference()) is not None:
            object.__setattr__(self._world, "_changed", changed)

    def _difference(self) -> str | None:
        now = _digests(self._world)
        names = {**self._before, **now}
        return next((name for name in names if self._before.get(name) != now.get(name)), None)


def _digests(world: World) -> dict[str, int]:
    return {
        name: digest(value)
        for name, value in vars(world).items()
        if name[:1] != "_" and name != "author"  # replaces a model, which may have state
    }
