"""The controller in C++: command for command what `reference.py` returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from metropolis import _core
from metropolis.controller.base import InvariantError
from metropolis.rules.metrics import Geodesic, Hops, Metric, PlaneMetric
from metropolis.rules.rules import Rule
from metropolis.types import Commit, Dispatch, MetropolisError, Position, Step


class NativeController:
    """See `metropolis.controller.base.Controller`; `core` is the C++ object, for a C++ driver."""

    def __init__(
        self,
        rule: Rule,
        metric: Metric,
        max_velocity: float,
        positions: Sequence[Position] | npt.NDArray[np.floating],
        target_step: Step,
        *,
        check_moves: bool = True,
    ) -> None:
        """As `ReferenceController`; `positions` may be an array of the shape (agents, 2)."""
        try:
            core = _core.make_controller(
                rule.couple_radius,
                rule.block_radius,
                core_metric(metric),
                max_velocity,
                np.asarray(positions, dtype=np.float64).reshape(-1, 2),
                target_step,
                check_moves,
            )
        except ValueError as error:
            raise MetropolisError(str(error)) from error
        self._adopt(core, target_step)

    @classmethod
    def of_dependencies(
        cls,
        agents: int,
        steps: Step,
        offsets: npt.NDArray[np.integer],
        partners: npt.NDArray[np.integer],
    ) -> NativeController:
        """The controller of an explicit list of dependencies, such as a mined oracle.

        With i = step * agents + agent, the agent's partners at that step are
        ``partners[offsets[i]:offsets[i + 1]]``; `offsets` is (steps * agents + 1,). An agent may
        run a step when each of its partners at that step and at the one before has committed every
        earlier step. Every cluster is a single agent, and positions are ignored.
        """
        controller = cls.__new__(cls)
        try:
            core = _core.make_graph_controller(agents, steps, offsets, partners)
        except ValueError as error:
            raise MetropolisError(str(error)) from error
        controller._adopt(core, steps)
        return controller

    def _adopt(self, core: _core.Controller, target_step: Step) -> None:
        self.core = core
        self._target = target_step
        self._ready: list[tuple[Step, tuple[int, ...]]] = []

    def start(self) -> list[Dispatch]:
        """See `Controller.start`."""
        return [Dispatch(*cluster) for cluster in self.core.start()]

    def handle(self, commits: Sequence[Commit]) -> list[Dispatch]:
        """See `Controller.handle`."""
        for commit in commits:
            try:
                self._ready += self.core.commit(commit.agents, commit.positions)
            except ValueError as error:
                raise MetropolisError(str(error)) from error
        ready, self._ready = sorted(self._ready), []
        return [Dispatch(*cluster) for cluster in ready]

    @property
    def floor(self) -> Step:
        """See `Controller.floor`."""
        return self.core.floor

    @property
    def finished(self) -> bool:
        """See `Controller.finished`."""
        return self.floor == self._target

    def validate(self) -> None:
        """See `Controller.validate`."""
        try:
            self.core.validate()
        except RuntimeError as error:
            raise InvariantError(str(error)) from error


def core_metric(metric: Metric) -> _core.Metric:
    """The C++ twin of a metric; raises MetropolisError when it has none."""
    if isinstance(metric, PlaneMetric):
        return _core.plane_metric(metric.name)
    if isinstance(metric, Geodesic):
        return _core.geodesic_metric(metric.walls.astype(np.uint8), metric.horizon)
    if isinstance(metric, Hops):
        degrees = [len(of) for of in metric.neighbours]
        offsets = np.concatenate([[0], np.cumsum(degrees, dtype=np.int64)])
        nodes = [node for of in metric.neighbours for node in of]
        return _core.hops_metric(offsets, np.array(nodes, dtype=np.int32))
    raise MetropolisError(f"the metric {metric.name} has no C++ twin; use the reference controller")
