"""The machine that a plan is for: its GPUs, the execution plans that fit, and the loading times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from metropolis._core import InstancePool, Profile, Request
from metropolis.names import did_you_mean
from metropolis.sim.architecture import GPUS, Architecture, architectures
from metropolis.sim.profiles import profile_of
from metropolis.types import MetropolisError

GPUS_MAX = 64
LOADING_S_MAX = 1e7
"""The longest loading time."""
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=LOADING_S_MAX)]
_Overhead: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=100)]


class ExecutionPlan(NamedTuple):
    """How a model runs: `dp` copies of it, each on `tp` GPUs (SamuLLM §3)."""

    dp: int
    tp: int

    @property
    def gpus(self) -> int:
        """The number of GPUs that the plan uses."""
        return self.dp * self.tp

    def __str__(self) -> str:
        return f"dp{self.dp} tp{self.tp}"


@dataclass(frozen=True, slots=True)
class LoadingTime:
    """Seconds to start a model, by the weights on a GPU.

    The defaults are estimates, a line through two of SamuLLM's times: about 12 s for chatglm3-6b
    (12.5 GB), by §5.1's times of 1,000 and 10,000 requests, and 30 s for vicuna-13b (26 GB, §2: its
    estimates of 128 and 98 s). A copy more takes 1.4 s, by chatglm3-6b's times on 8 GPUs. The
    paper's least and most are 11 and 47 s.
    """

    base_s: Annotated[float, msgspec.Meta(ge=-LOADING_S_MAX, le=LOADING_S_MAX)] = -4.8
    s_per_gb: Seconds = 1.335
    least_s: Seconds = 11.0
    most_s: Seconds = 47.0
    copy_s: Seconds = 1.4
    """Added for each further copy: they read the same disk."""
    parallel_s: Seconds = 4.0
    """Added with tensor parallelism, for communication between the GPUs."""

    def of(self, weight_bytes: float, plan: ExecutionPlan) -> float:
        """Seconds until a model with that plan can answer."""
        read_s = self.base_s + self.s_per_gb * weight_bytes / plan.tp / 1e9
        one_s = max(self.least_s, read_s)
        if plan.tp > 1:
            one_s += self.parallel_s
        return min(self.most_s, self.of_copies(one_s, plan.dp))

    def of_copies(self, one_s: float, copies: int) -> float:
        """Seconds of copies that start at the same time, if one alone takes `one_s`."""
        return one_s + (copies - 1) * self.copy_s


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """What an engine adds to each iteration, beside the work of the GPUs."""

    iteration_ms: _Overhead = 0.0
    """Milliseconds added to each iteration."""
    sequence_ms: _Overhead = 0.0
    """Milliseconds added to each iteration for each sequence of its batch."""


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind in one machine."""

    gpus: int = 8
    gpu: str = "a100-80g"
    shapes: Mapping[str, Architecture] = field(default_factory=architectures)
    """Model -> architecture."""
    profiles: Mapping[tuple[str, int], Profile] = field(default_factory=dict)
    """(model, tp) -> profile, for models whose profiles are not derived from the architecture."""
    loading: LoadingTime = LoadingTime()
    loading_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """(model, tp) -> measured loading time of one copy. The time of further copies is added as by
    `loading`, without the bound `most_s`, which is an estimate."""
    overhead: EngineOverhead = EngineOverhead()
    tp_max: int = 8

    def __post_init__(self) -> None:
        if self.gpu not in GPUS:
            raise MetropolisError(
                f"there is no GPU {self.gpu!r}{did_you_mean(self.gpu, GPUS)}; there are "
                f"{', '.join(GPUS)}"
            )
        for name, count in (("gpus", self.gpus), ("tp_max", self.tp_max)):
            if not 1 <= count <= GPUS_MAX:
                raise MetropolisError(f"{name} is {count}; a machine has 1 to {GPUS_MAX}")

    @property
    def nvlink_group(self) -> int:
        """The number of GPUs that NVLink connects with each other."""
        return GPUS[self.gpu].nvlink_group

    def shape(self, model: str) -> Architecture:
        """The architecture of a model; raises MetropolisError on an unknown one."""
        if model not in self.shapes:
            meant = did_you_mean(model, self.shapes)
            raise MetropolisError(
                f"there is no model {model!r}{meant}; there are {', '.join(sorted(self.shapes))}"
            )
        return self.shapes[model]

    def load_s(self, model: str, plan: ExecutionPlan) -> float:
        """Seconds to start a model; its copies start at the same time."""
        if (measured := self.loading_s.get((model, plan.tp))) is not None:
            return self.loading.of_copies(measured, plan.dp)
        return self.loading.of(self.shape(model).weight_bytes, plan)

    def plans(self, model: str) -> tuple[ExecutionPlan, ...]:
        """The valid plans, by GPUs: the weights and a sequence of the model's context fit (§3).

        Raises MetropolisError if there is none.
        """
        return self._plans[model]

    def profile(self, model: str, tensor_parallel: int) -> Profile:
        """The costs of an instance of the model. Raises MetropolisError if it does not fit."""
        self.shape(model)
        return self._plans.profiles(model)[tensor_parallel]

    @cached_property
    def _plans(self) -> _Plans:
        return _Plans(self)


class _Plans(dict[str, tuple[ExecutionPlan, ...]]):
    """The valid plans by model, on first use."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._profiles: dict[str, dict[int, Profile]] = {}

    def __missing__(self, model: str) -> tuple[ExecutionPlan, ...]:
        machine = self._machine
        found = [
            ExecutionPlan(dp, tp)
            for tp in self.profiles(model)
            for dp in range(1, machine.gpus // tp + 1)
        ]
        if not found:
            raise MetropolisError(
                f"{machine.gpus} x {machine.gpu} cannot hold {model}: its weights are "
                f"{machine.shape(model).weight_bytes / 1e9:.0f} GB, and a sequence of its context "
                "must fit as well"
            )
        self[model] = tuple(sorted(found, key=lambda plan: (plan.gpus, plan.tp)))
        return self[model]

    def profiles(self, model: str) -> dict[int, Profile]:
        """Tensor parallelism -> profile, for those that fit."""
        if model not in self._profiles:
            self._profiles[model] = _profiles_of(self._machine, model)
        return self._profiles[model]


def _profiles_of(machine: Machine, model: str) -> dict[int, Profile]:
    longest = Request(machine.shape(model).context_tokens - 1, 1)
    found = {}
    for tensor_parallel, profile in _candidates(machine, model):
        profile.w_ms += machine.overhead.iteration_ms
        profile.h_ms += machine.overhead.iteration_ms
        profile.b_ms += machine.overhead.sequence_ms
        try:
            InstancePool.check_fits(profile, longest)
        except ValueError:
            continue  # too large for so few GPUs
        found[tensor_parallel] = profile
    return found


def _candidates(machine: Machine, model: str) -> Iterable[tuple[int, Profile]]:
    """Tensor parallelism and a profile, where the weights fit."""
    shape, tensor_parallel_max = machine.shape(model), min(machine.gpus, machine.tp_max)
    own = {tp: profile for (name, tp), profile in machine.profiles.items() if name == model}
    group = machine.nvlink_group
    for tp in own:
        if machine.gpus > group and group % tp and tp % group:
            raise MetropolisError(
                f"{model} has a profile for {tp} GPUs, but NVLink connects groups of {group} "
                f"{machine.gpu}; the degree should divide {group} or be a multiple of it"
            )
    if own:
        yield from ((tp, copy(own[tp])) for tp in sorted(own) if tp <= tensor_parallel_max)
        return
    tensor_parallel = 1
    while tensor_parallel <= tensor_parallel_max and shape.divides_by(tensor_parallel):
        with suppress(MetropolisError):
            yield tensor_parallel, profile_of(shape, machine.gpu, tensor_parallel)
        tensor_parallel *= 2
