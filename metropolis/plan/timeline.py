"""What happens to an application's models under a sequence of stages, in virtual time.

A stage says which models run, and how (SamuLLM §3). A model that continues with the same plan on
the same GPUs keeps its caches; any other is loaded first. The rest of an interrupted model's work
is recomputed from the tokens it has generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from metropolis._core import Profile
from metropolis.plan.machine import ExecutionPlan, Machine
from metropolis.plan.placement import Gpus, place
from metropolis.plan.work import Remaining, Run, Times, remaining_after, run
from metropolis.plan.workload import Workload
from metropolis.sim.profiles import COSTS

Stage: TypeAlias = Mapping[str, ExecutionPlan]
"""Node -> execution plan."""


ROUNDING_S = 1e-6
"""Maximum rounding error of times that are relative to different instants."""


class Boundary(NamedTuple):
    """Ends a stage as soon as `node` has at most `open_requests` open requests."""

    node: str
    open_requests: int


class PlannedStage(NamedTuple):
    """A stage, and the boundary at which it ends if no node finishes before."""

    plans: Stage
    boundary: Boundary | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A node on GPUs."""

    plan: ExecutionPlan
    gpus: Gpus
    loaded_s: float
    """Time at which the model can answer."""
    remaining: Remaining
    """The requests that were open when the model was loaded."""


@dataclass(frozen=True)
class Moment:
    """The state at an instant; times in seconds since the start of the application."""

    time_s: float
    remaining: Mapping[str, Remaining]
    """Node -> its open requests, of unfinished nodes that do not run."""
    running: Mapping[str, Started]
    completed_s: Mapping[str, Times]
    """Node -> (n,): the time at which each request was completed; infinite for open requests, and
    for requests that a running node has completed since it was loaded."""

    @property
    def unfinished(self) -> set[str]:
        """Nodes with open requests."""
        return {*self.remaining, *self.running}


@dataclass(frozen=True)
class Prediction:
    """A running node's future, if nothing interrupts it."""

    started: Started
    run: Run
    ready_s: Times
    """When the needs of its rows are met, from its loading on."""

    @property
    def finished_s(self) -> float:
        """The time at which the node has no open request any more, in seconds."""
        return self.started.loaded_s + self.run.finished_s

    def reached_s(self, open_requests: int) -> float:
        """When it has at most so many open requests; infinite if it starts with no more."""
        times = self.run.completed_s
        if len(times) <= open_requests:
            return np.inf
        last = len(times) - 1 - open_requests
        return self.started.loaded_s + float(np.partition(times, last)[last])

    def open_requests(self, at_s: float) -> int:
        """The number of the node's open requests at the time `at_s`."""
        elapsed_s = at_s - self.started.loaded_s + ROUNDING_S
        return int((self.run.completed_s > elapsed_s).sum())

    @cached_property
    def completed_s(self) -> Times:
        """When each request of the node is complete; infinite for those complete before."""
        times = np.full(len(self.run.remaining.workload), np.inf)
        times[self.run.remaining.rows] = self.run.completed_s + self.started.loaded_s
        return times

    def flops_between(self, from_s: float, until_s: float) -> float:
        """The number of floating-point operations done between the two times."""
        offset = self.started.loaded_s
        return self.run.flops_until(until_s - offset) - self.run.flops_until(from_s - offset)


@dataclass(frozen=True)
class Outlook:
    """The predicted course of a stage, from its beginning to its end."""

    moment: Moment
    """The beginning of the stage, with its nodes running."""
    predictions: Mapping[str, Prediction]
    boundary_s: float = np.inf
    """Time at which the boundary is reached; infinite if never."""

    @property
    def ends_s(self) -> float:
        """Time at which the first node finishes or the boundary is reached; infinite if never."""
        finished_s = (each.finished_s for each in self.predictions.values())
        return min(self.boundary_s, *finished_s, np.inf)

    @property
    def flops(self) -> float:
        """The number of floating-point operations done in the stage."""
        begins_s, ends_s = self.moment.time_s, self.ends_s
        return sum(each.flops_between(begins_s, ends_s) for each in self.predictions.values())

    @property
    def flops_per_s(self) -> float:
        """The throughput of the stage (SamuLLM §3)."""
        duration_s = self.ends_s - self.moment.time_s
        return self.flops / duration_s if 0 < duration_s < np.inf else 0.0


@dataclass
class Timeline:
    """Simulates stages of a workload; remembers what it has simulated."""

    machine: Machine
    workload: Workload
    slowness: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """(model, tp) -> factor of the duration of iterations; 1 by default."""

    def __post_init__(self) -> None:
        self._runs: dict[tuple[int, ExecutionPlan, bytes], Run] = {}
        self._rests: dict[tuple[int, float], Remaining] = {}
        self._placements: dict[
            tuple[frozenset[tuple[str, ExecutionPlan]], frozenset[tuple[str, Gpus]]],
            dict[str, Gpus] | None,
        ] = {}
        self._profiles: dict[tuple[str, int], Profile] = {}
        self.simulated_requests = self.outlooks = 0
        """Numbers of simulated requests and of outlooks: the effort of the search so far."""

    def start(self) -> Moment:
        """The moment before the first stage."""
        remaining = {name: Remaining.all_of(each) for name, each in self.workload.items()}
        never = {name: np.full(len(each), np.inf) for name, each in self.workload.items()}
        return Moment(0.0, remaining, {}, never)

    def outlook(
        self, moment: Moment, stage: Stage, boundary: Boundary | None = None
    ) -> Outlook | None:
        """What follows if `stage` begins now; None if it does not fit on the GPUs.

        A boundary that has been passed, or of a node outside the stage, does not count.
        """
        self.outlooks += 1
        gpus = self._placed(moment, stage)
        if gpus is None:
            return None
        running, stopped = {}, {}
        for name, started in moment.running.items():
            if stage.get(name) == started.plan and gpus[name] == started.gpus:
                running[name] = started
            else:
                stopped[name] = started
        begun = self._without(moment, stopped) if stopped else moment
        for name, plan in stage.items():
            if name not in running:
                loaded_s = moment.time_s + self.machine.load_s(self._model(name), plan)
                running[name] = Started(plan, gpus[name], loaded_s, begun.remaining[name])
        remaining = {name: each for name, each in begun.remaining.items() if name not in stage}
        begun = Moment(moment.time_s, remaining, running, begun.completed_s)
        predictions = self._predictions(begun)
        boundary_s = np.inf
        if boundary is not None and (node := predictions.get(boundary.node)) is not None:
            reached_s = node.reached_s(boundary.open_requests)
            boundary_s = reached_s if reached_s > moment.time_s else np.inf
        return Outlook(begun, predictions, boundary_s)

    def fits(self, moment: Moment, stage: Stage) -> bool:
        """Whether the stage fits on the GPUs."""
        return self._placed(moment, stage) is not None

    def after(self, outlook: Outlook) -> Moment:
        """The moment at which the stage ends."""
        time_s, running = outlook.ends_s, {}
        completed_s = dict(outlook.moment.completed_s)
        for name, prediction in outlook.predictions.items():
            if prediction.finished_s <= time_s:
                completed_s[name] = np.minimum(completed_s[name], prediction.completed_s)
            else:
                running[name] = prediction.started
        return Moment(time_s, outlook.moment.remaining, running, completed_s)

    def profile(self, model: str, tensor_parallel: int) -> Profile:
        """The costs of an instance of the model."""
        key = model, tensor_parallel
        if key not in self._profiles:
            profile = self.machine.profile(model, tensor_parallel)
            self._profiles[key] = _slower(profile, self.slowness.get(key, 1.0))
        return self._profiles[key]

    def _predictions(self, moment: Moment) -> dict[str, Prediction]:
        found: dict[str, Prediction] = {}
        for name in self.workload:  # in topological order
            if (started := moment.running.get(name)) is not None:
                ready_s = self._ready_s(name, started, moment, found)
                found[name] = Prediction(started, self._run(name, started, ready_s), ready_s)
        return found

    def _ready_s(
        self, name: str, started: Started, moment: Moment, found: Mapping[str, Prediction]
    ) -> Times:
        remaining, workload = started.remaining, self.workload[name]
        if not workload.needs:
            return np.zeros(len(remaining.rows))
        ready_s = np.zeros(len(workload))
        for need in workload.needs:
            times = moment.completed_s[need.node]
            if need.node in found:
                times = np.minimum(times, found[need.node].completed_s)
            np.maximum.at(ready_s, need.rows, times[need.answers])
        return np.asarray(np.maximum(ready_s[remaining.rows] - started.loaded_s, 0.0))

    def _run(self, name: str, started: Started, ready_s: Times) -> Run:
        key = id(started.remaining), started.plan, ready_s.tobytes() if ready_s.any() else b""
        if key not in self._runs:
            profile = self.profile(self._model(name), started.plan.tp)
            self._runs[key] = run(started.remaining, started.plan, profile, ready_s)
            self.simulated_requests += len(started.remaining.rows)
        return self._runs[key]

    def _without(self, moment: Moment, stopped: Mapping[str, Started]) -> Moment:
        """The moment with some nodes interrupted."""
        predictions = self._predictions(moment)
        remaining, completed_s = dict(moment.remaining), dict(moment.completed_s)
        for name in stopped:
            prediction = predictions[name]
            remaining[name] = self._rest(name, prediction, moment.time_s)
            times = prediction.completed_s
            before_s = np.where(times <= moment.time_s, times, np.inf)
            completed_s[name] = np.minimum(completed_s[name], before_s)
        running = {name: each for name, each in moment.running.items() if name not in stopped}
        return Moment(moment.time_s, remaining, running, completed_s)

    def _rest(self, name: str, prediction: Prediction, at_s: float) -> Remaining:
        started, elapsed_s = prediction.started, at_s - prediction.started.loaded_s
        if elapsed_s <= 0:
            return started.remaining
        key = id(prediction.run), elapsed_s
        if key not in self._rests:
            profile = self.profile(self._model(name), started.plan.tp)
            self._rests[key] = remaining_after(
                started.remaining, started.plan, profile, prediction.ready_s, elapsed_s
            )
            self.simulated_requests += len(started.remaining.rows)
        return self._rests[key]

    def _placed(self, moment: Moment, stage: Stage) -> dict[str, Gpus] | None:
        machine = self.machine
        stays = {
            name: each.gpus for name, each in moment.running.items() if stage.get(name) == each.plan
        }
        key = frozenset(stage.items()), frozenset(stays.items())
        if key not in self._placements:
            load_s = {name: machine.load_s(self._model(name), plan) for name, plan in stage.items()}
            found = place(machine.gpus, machine.nvlink_group, stage, stays, load_s)
            self._placements[key] = found
        return self._placements[key]

    def _model(self, name: str) -> str:
        return self.workload[name].node.model


def _slower(profile: Profile, factor: float) -> Profile:
    if factor == 1.0:
        return profile
    changed = copy(profile)
    for name in COSTS:
        setattr(changed, name, getattr(profile, name) * factor)
    return changed
