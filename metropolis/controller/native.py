"""The controller in C++; it returns the same commands as `reference.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import metropolis._core as _core
from metropolis.controller.core_errors import input_checked, invariants_checked
from metropolis.rules.metrics import Metric
from metropolis.rules.native import core_metric
from metropolis.rules.rules import Rule
from metropolis.trace.schema import ValueDependencies
from metropolis.types import AgentId, Commit, Dispatch, Position, Step


def native_controller(
    rule: Rule,
    metric: Metric,
    max_velocity: float,
    positions: npt.ArrayLike,
    target_step: Step,
    *,
    check_moves: bool = True,
    steps: Sequence[Step] = (),
) -> _core.Controller:
    """The C++ object, for a C++ caller; the parameters are those of `ReferenceController`.

    `positions` has the shape (agents, 2). Raises MetropolisError on bad input.
    """
    with input_checked():
        return _core.make_controller(
            rule.couple_radius,
            rule.block_radius,
            core_metric(metric),
            max_velocity,
            np.asarray(positions, dtype=np.float64).reshape(-1, 2),
            target_step,
            check_moves,
            steps,
        )


def mined_controller(
    steps: Step, agents: int, offsets: npt.ArrayLike, partners: npt.ArrayLike
) -> _core.Controller:
    """The C++ object that follows an explicit list of dependencies, such as a mined oracle.

    With i = step * agents + agent, the agent's partners at that step are
    ``partners[offsets[i]:offsets[i + 1]]``; `offsets` is (steps * agents + 1,). An agent may run a
    step when each of its partners at that step and at the one before has committed every earlier
    step. Every cluster is a single agent, and positions are ignored.
    """
    with input_checked():
        return _core.make_graph_controller(agents, steps, offsets, partners)


def value_controller(steps: Step, agents: int, dependencies: ValueDependencies) -> _core.Controller:
    """The C++ object that follows dependencies by value; for the rest, see `mined_controller`."""
    offsets, writer, ago = dependencies.offsets, dependencies.writer, dependencies.ago
    with input_checked():
        return _core.make_value_controller(agents, steps, offsets, writer, ago)


class NativeController:
    """See `metropolis.controller.base.Controller`; drives a C++ object from Python."""

    def __init__(self, core: _core.Controller, target_step: Step) -> None:
        """Take ownership of the C++ object: no other code may drive it."""
        self._core = core
        self._target = target_step
        self._ready: list[tuple[Step, tuple[int, ...]]] = []

    @classmethod
    def of_rule(
        cls,
        rule: Rule,
        metric: Metric,
        max_velocity: float,
        positions: Sequence[Position],
        target_step: Step,
        *,
        check_moves: bool = True,
        steps: Sequence[Step] = (),
    ) -> NativeController:
        """The parameters are those of `ReferenceController`.

        Raises MetropolisError on bad input.
        """
        core = native_controller(
            rule,
            metric,
            max_velocity,
            positions,
            target_step,
            check_moves=check_moves,
            steps=steps,
        )
        return cls(core, target_step)

    def start(self) -> list[Dispatch]:
        """See `Controller.start`."""
        with input_checked():
            return [Dispatch(*cluster) for cluster in self._core.start()]

    def handle(self, commits: Sequence[Commit]) -> list[Dispatch]:
        """See `Controller.handle`."""
        with input_checked():
            for commit in commits:
                self._ready += self._core.commit(commit.agents, commit.positions)
        ready, self._ready = sorted(self._ready), []
        return [Dispatch(*cluster) for cluster in ready]

    def blocked_by(self) -> npt.NDArray[np.int32]:
        """See `Controller.blocked_by`."""
        return self._core.blocked_by()

    def clear_until(self, agent: AgentId) -> Step:
        """See `Controller.clear_until`."""
        return self._core.clear_until(agent)

    @property
    def floor(self) -> Step:
        """See `Controller.floor`."""
        return self._core.floor

    @property
    def finished(self) -> bool:
        """See `Controller.finished`."""
        return self.floor == self._target

    def validate(self) -> None:
        """See `Controller.validate`."""
        with invariants_checked():
            self._core.validate()
