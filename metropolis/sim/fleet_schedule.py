"""A fleet of simulated instances that changes while a trace is replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError

Gpus: TypeAlias = tuple[int, ...]
"""The GPUs of an instance, by number."""


@dataclass(frozen=True, slots=True)
class FleetPhase:
    """The instances that serve from a step on."""

    step: int
    """The phase begins when the slowest agent has reached this step."""
    gpus: Mapping[int, Gpus]
    """Instance -> the GPUs on which it runs."""


@dataclass(frozen=True)
class FleetSchedule:
    """Phases in the order of their steps; the first begins at step 0, with its models loaded."""

    fleet: SimulatedFleet
    """All instances of all phases."""
    load_s: tuple[float, ...]
    """One for each instance: seconds from the time at which its GPUs are free until it serves."""
    phases: tuple[FleetPhase, ...]

    def __post_init__(self) -> None:
        steps = [each.step for each in self.phases]
        if not steps or steps[0] or any(one >= other for one, other in pairwise(steps)):
            raise MetropolisError(
                f"the phases of a fleet begin at the steps {steps}; write ascending ones from 0"
            )
        if len(self.load_s) != len(self.fleet) or not all(each >= 0 for each in self.load_s):
            raise MetropolisError("a fleet that changes needs a loading time of each instance")
        for number, phase in enumerate(self.phases, 1):
            if not all(0 <= index < len(self.fleet) for index in phase.gpus):
                raise MetropolisError(f"phase {number} has an instance that the fleet lacks")
            taken = [gpu for gpus in phase.gpus.values() for gpu in gpus]
            if len(set(taken)) < len(taken) or any(
                len(gpus) != self.fleet.instances[index].tensor_parallel
                for index, gpus in phase.gpus.items()
            ):
                raise MetropolisError(
                    f"phase {number}: each instance needs GPUs of its own, as its profile says"
                )

    def __str__(self) -> str:
        if len(self.phases) == 1:
            return f"{self.fleet}"
        return f"{len(self.phases)} phases of {self.fleet}"

    @property
    def gpus(self) -> int:
        """Number of GPUs that any phase uses."""
        return len({g for each in self.phases for gpus in each.gpus.values() for g in gpus})

    def check_hosts(self, trace: Trace) -> None:
        """Raise MetropolisError if a phase lacks an instance for a call between its steps.

        Calls of agents that are further ahead wait for a later phase.
        """
        calls = trace.calls
        ends = [*(each.step for each in self.phases[1:]), trace.steps]
        for number, (phase, end) in enumerate(zip(self.phases, ends, strict=True), 1):
            hosted = {self.fleet.instances[index].model for index in phase.gpus}
            is_within = (calls.step >= phase.step) & (calls.step < end)
            asked = {calls.models[index] for index in {*calls.model[is_within].tolist()}}
            if None not in hosted and (missing := sorted(asked - hosted)):
                raise MetropolisError(
                    f"phase {number}, steps {phase.step} to {end - 1}: no instance hosts the model "
                    f"{missing[0]!r}, which calls of these steps ask"
                )
