"""The run of a world in the mode optimistic, for `check_world`.

Agents run ahead on predictions, are restored to saved states, and announce their ways
(`Agent.intent`). No other mode needs these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import Step
from metropolis.world.record import StepRecord
from metropolis.world.scenario import Scenario

PROFILE = "llama-3-8b/l4"
"""Its latencies let some agents run ahead of others."""


def optimistic_records(
    scenario: Scenario, seed: int, steps: Step, options: Mapping[str, Any]
) -> list[StepRecord]:
    """The history of `scenario` up to `steps`; the world's author answers, in virtual time."""
    author = Scripted(scenario.world.author)
    llm = VirtualInstances(author, SimulatedFleet.uniform(PROFILE, 1))
    simulation = Simulation(
        scenario.world,
        scenario.agents,
        llm,
        seed=seed,
        options=options,
        mode="optimistic",
        waste_budget=1.0,
    )
    return list(simulation.steps(steps))
