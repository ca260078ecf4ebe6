"""Which instances of a changing fleet serve: events in, commands out. It has no clock.

1. When the slowest agent reaches the first step of a phase, instances that the phase lacks, or that
   it has on other GPUs, drain: they take no requests and finish those that they have begun.
2. The GPUs of a drained instance are free. So are those of an instance that drains or loads and has
   no requests.
3. An instance of the phase loads as soon as all its GPUs are free, for its loading time. Then it
   serves. A draining one that a later phase has on the same GPUs serves again at once.

| state    | has its GPUs | command -> next state       |
|----------|--------------|-----------------------------|
| OFF      | no           | -    -> LOADING             |
| LOADING  | yes          | Up   -> SERVING; Off -> OFF |
| SERVING  | yes          | Down -> DRAINING            |
| DRAINING | yes          | Off  -> OFF; Up -> SERVING  |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import TypeAlias

from metropolis.sim.fleet_schedule import FleetSchedule, Gpus


class InstanceState(Enum):
    """The states of an instance; see the table above."""

    OFF = auto()
    LOADING = auto()
    SERVING = auto()
    DRAINING = auto()


@dataclass(frozen=True, slots=True)
class Up:
    """The instance accepts requests from now on."""

    instance: int


@dataclass(frozen=True, slots=True)
class Down:
    """The instance accepts no more requests."""

    instance: int


@dataclass(frozen=True, slots=True)
class Off:
    """The instance has left its GPUs, and its cache is lost."""

    instance: int


Change: TypeAlias = Up | Down | Off


class FleetChanges:
    """The state of each instance."""

    def __init__(self, schedule: FleetSchedule) -> None:
        self._schedule, self._phase = schedule, 0
        self.states = [InstanceState.OFF] * len(schedule.fleet)
        self.gpus: dict[int, Gpus] = {}
        """The GPUs of the instances that are not OFF."""
        self._loaded_s: dict[int, float] = {}
        """Instance that is loading -> the time at which it will serve."""
        self._is_settled = False
        """Whether nothing changes before the next phase."""
        for instance, gpus in schedule.phases[0].gpus.items():
            self.states[instance], self.gpus[instance] = InstanceState.SERVING, gpus

    @property
    def due_s(self) -> float:
        """When the next instance will have loaded; infinite while none loads."""
        return min(self._loaded_s.values(), default=inf)

    def update(self, floor: int, in_flight: Sequence[int], now_s: float) -> list[Change]:
        """The changes that are due.

        `floor`: the step of the slowest agent; `in_flight`: requests on each instance. Call it
        after each event, and again after carrying out its changes.
        """
        phases = self._schedule.phases
        while self._phase + 1 < len(phases) and phases[self._phase + 1].step <= floor:
            self._phase, self._is_settled = self._phase + 1, False
        if self._is_settled:
            return []
        changes = self._leave(in_flight) + self._load(now_s)
        states = self.states
        self._is_settled = (
            all(states[instance] is InstanceState.SERVING for instance in phases[self._phase].gpus)
            and InstanceState.DRAINING not in states
        )
        return changes

    def _leave(self, in_flight: Sequence[int]) -> list[Change]:
        wanted, changes = self._schedule.phases[self._phase].gpus, list[Change]()
        for instance, gpus in list(self.gpus.items()):
            stays, state = wanted.get(instance) == gpus, self.states[instance]
            if stays and state is InstanceState.DRAINING:
                changes.append(self._set(instance, InstanceState.SERVING))
            elif not stays and state is InstanceState.SERVING:
                changes.append(self._set(instance, InstanceState.DRAINING))
            elif not stays and not in_flight[instance]:
                self._loaded_s.pop(instance, None)
                changes.append(self._set(instance, InstanceState.OFF))
        return changes

    def _load(self, now_s: float) -> list[Change]:
        changes = list[Change]()
        taken = {gpu for gpus in self.gpus.values() for gpu in gpus}
        for instance, gpus in self._schedule.phases[self._phase].gpus.items():
            if self.states[instance] is InstanceState.OFF and taken.isdisjoint(gpus):
                self.states[instance], self.gpus[instance] = InstanceState.LOADING, gpus
                self._loaded_s[instance] = now_s + self._schedule.load_s[instance]
            if self._loaded_s.get(instance, inf) <= now_s:
                del self._loaded_s[instance]
                changes.append(self._set(instance, InstanceState.SERVING))
        return changes

    def _set(self, instance: int, state: InstanceState) -> Change:
        self.states[instance] = state
        if state is InstanceState.SERVING:
            return Up(instance)
        if state is InstanceState.DRAINING:
            return Down(instance)
        del self.gpus[instance]
        return Off(instance)
