"""`Agent.routine` decides without a model, and never differently from `Agent.proceed`."""

from __future__ import annotations

from typing import Any

import pytest

from metropolis import Agent, Simulation
from metropolis.llm.backends.scripted import Scripted
from metropolis.workers.cluster_step import has_routine
from metropolis.world.base import UNDECIDED
from metropolis.worlds import smallville
from metropolis.worlds.minimal import make

STAY = {"walk": (0, 0), "say": ""}


class Steady(Agent):
    """Stays, by routine in even steps."""

    def __init__(self, name: str, calls: list[tuple[str, int]]) -> None:
        self.name, self.calls = name, calls

    def save(self) -> Any:
        return None

    def restore(self, saved: Any) -> None:
        pass

    def routine(self, observation: Any) -> Any:
        return STAY if self.step % 2 == 0 else UNDECIDED

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.calls.append((self.name, self.step))
        return STAY


class Livelier(Steady):
    """Redefines only what its routine knows nothing of."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self.calls.append((self.name, self.step))
        return STAY


class Failing(Steady):
    def routine(self, observation: Any) -> Any:
        raise ValueError("broken")


class Mute(Steady):
    def routine(self, observation: Any) -> Any:
        return {"walk": (0, 0)}


def run(kind: type[Steady], steps: int = 4) -> list[tuple[str, int]]:
    scenario, calls = make(agents=2), list[tuple[str, int]]()
    agents = [kind(agent.name, calls) for agent in scenario.agents]
    Simulation(scenario.world, agents).run(steps)
    return calls


def test_proceed_is_called_in_the_other_steps_only() -> None:
    assert {step for _, step in run(Steady)} == {1, 3}


def test_a_routine_is_unused_where_a_subclass_redefines_proceed() -> None:
    assert has_routine(Steady)
    assert not has_routine(Livelier)
    assert not has_routine(Agent)
    assert {step for _, step in run(Livelier)} == {0, 1, 2, 3}


def test_an_error_in_a_routine_names_agent_step_and_code() -> None:
    with pytest.raises(ValueError, match="broken") as failure:
        run(Failing)
    assert any("step 0" in note and "routine" in note for note in failure.value.__notes__)


def test_an_error_of_the_world_names_an_action_of_a_routine_that_is_not_in_its_space() -> None:
    with pytest.raises(KeyError) as failure:
        run(Mute)
    (note,) = failure.value.__notes__
    assert "in Green.resolve: " in note
    assert "; the action of 'Villager 1' is not in the world's action space: the action ha" in note


def history(*, uses_routines: bool) -> str:
    scenario = smallville.make(agents=12)
    simulation = Simulation(scenario.world, scenario.agents, Scripted(scenario.author))
    simulation._worker.uses_routines = uses_routines
    return simulation.run(700).history_sha256


def test_residents_live_the_same_day_without_routines() -> None:
    assert history(uses_routines=True) == history(uses_routines=False)
