"""The base of environments of a world: their arguments, and at most one episode at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium

from metropolis.adapters.session import Episode, bodies_of, text_map
from metropolis.names import check_name, cut
from metropolis.runtime.live.setup import reset
from metropolis.types import MetropolisError
from metropolis.world.base import World
from metropolis.world.checks import seed_of, whole_number
from metropolis.world.scenario import Scenario, make_scenario

RenderMode = Literal["ansi"]
RENDER_MODES = get_args(RenderMode)


class WorldEnvironment:
    """One world, its agents by name, and the episode in progress."""

    def __init__(
        self,
        world: World | str | Path,
        agents: int | None,
        scenario_seed: int,
        max_cycles: int | None,
        render_mode: RenderMode | None,
    ) -> None:
        """See `metropolis.parallel_env`; raises MetropolisError if an argument is wrong."""
        if render_mode is not None:
            check_name("render mode", render_mode, RENDER_MODES)
        scenario_seed = seed_of(scenario_seed, "scenario_seed")
        self._make, scenario = _scenario_of(world, agents, scenario_seed)
        self.world, self.max_cycles = scenario.world, scenario.steps
        if max_cycles is not None:
            self.max_cycles = whole_number("max_cycles", max_cycles, 1)
        self._names = bodies_of(reset(self.world, scenario_seed, {}))
        self.render_mode: str | None = render_mode
        self._episode: Episode | None = None

    def render(self) -> Any:
        """Return the agents' positions as text, in the mode `ansi`."""
        if self.render_mode is None:
            return None
        return text_map(self.world, self._running_episode().entities())

    def close(self) -> None:
        """Free the resources of the episode."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    def _running_episode(self) -> Episode:
        if self._episode is None:
            raise MetropolisError(f"the world {self.world.name!r} is not reset; call reset first")
        return self._episode


def _scenario_of(
    world: World | str | Path, agents: int | None, scenario_seed: int
) -> tuple[Callable[[], Scenario], Scenario]:
    """What makes the scenario with new agents, and the first one."""
    make: Callable[[], Scenario]
    if isinstance(world, str | Path):
        make = partial(make_scenario, world, agents=agents, seed=scenario_seed)
    elif agents is not None:
        raise MetropolisError(
            f"agents is {cut(agents)}, but only a world given by its name is made with a number of "
            "agents; omit agents"
        )
    else:
        make = partial(Scenario, world, ())
    scenario = make()
    for space in ("observation_space", "action_space"):
        if not isinstance(getattr(scenario.world, space, None), gymnasium.Space):
            raise MetropolisError(
                f"the world {scenario.world.name!r} has no {space}; it should be a gymnasium.Space"
            )
    return make, scenario
