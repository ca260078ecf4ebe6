"""The simulated fleet of an allocation, and of one that changes over the day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.placement import Gpus, place
from metropolis.plan.society.allocation import Allocation, Models
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.fleet_schedule import FleetPhase, FleetSchedule
from metropolis.sim.profiles import ProfileEntry, load_entry


class Phase(NamedTuple):
    """An allocation from a step on."""

    step: int
    allocation: Allocation


_Key: TypeAlias = tuple[int, int, int]
"""A copy: the index of its model, its tensor parallelism and its number."""


def schedule_of(models: Models, phases: Sequence[Phase]) -> FleetSchedule:
    """The instances of all phases; a copy that the next phase has as well stays where it is.

    Of copies that must move because others do not fit, those move whose loading takes least.
    """
    keys = sorted({key for phase in phases for key in _keys(phase.allocation)})
    load_s = {
        key: models.machine.load_s(models.names[key[0]], ExecutionPlan(1, key[1])) for key in keys
    }
    placed: dict[str, Gpus] = {}
    steps = []
    for phase in phases:
        stage = {_name(key): ExecutionPlan(1, key[1]) for key in _keys(phase.allocation)}
        stays = {name: gpus for name, gpus in placed.items() if name in stage}
        loads = {_name(key): seconds for key, seconds in load_s.items()}
        found = place(models.machine.gpus, models.machine.nvlink_group, stage, stays, loads)
        assert found is not None, "an allocation that does not fit"
        placed = found
        gpus = {
            index: found[_name(key)][0] for index, key in enumerate(keys) if _name(key) in found
        }
        steps.append(FleetPhase(phase.step, gpus))
    instances = tuple(_entry(models, model, tp) for model, tp, _ in keys)
    return FleetSchedule(SimulatedFleet(instances), tuple(load_s.values()), tuple(steps))


def loading_s(models: Models, before: Allocation, after: Allocation) -> float:
    """The longest loading time of a copy that `before` lacks; other copies serve meanwhile."""
    coming = {*_keys(after)} - {*_keys(before)}
    return max(
        (
            models.machine.load_s(models.names[model], ExecutionPlan(1, tp))
            for model, tp, _ in coming
        ),
        default=0.0,
    )


def _keys(allocation: Allocation) -> list[_Key]:
    return [
        (index, plan.tp, copy)
        for index, plan in enumerate(allocation)
        if plan is not None
        for copy in range(plan.dp)
    ]


def _name(key: _Key) -> str:
    return "/".join(map(str, key))


def _entry(models: Models, index: int, tensor_parallel: int) -> ProfileEntry:
    name = models.names[index]
    entry = load_entry(f"{name}/{models.machine.gpu}-tp{tensor_parallel}")
    profile = models.machine.profile(name, tensor_parallel)
    return replace(entry, name=f"{name}={entry.name}", profile=profile, model=name)
