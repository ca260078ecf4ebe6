"""Allocations: how the GPUs of a machine are divided among models, and in which copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from typing import TypeAlias

from metropolis.plan.machine import ExecutionPlan, Machine
from metropolis.plan.placement import place
from metropolis.plan.search.heuristics import even_shares

Allocation: TypeAlias = tuple[ExecutionPlan | None, ...]
"""The plan of each model, in the order of `Models.names`; None: the model is not there."""
GPUS_MAX = 16
"""Maximum GPUs of a machine: for many copies, placement does not try all subsets."""


@dataclass(frozen=True)
class Models:
    """The models of a society, on a machine."""

    machine: Machine
    names: tuple[str, ...]

    @cached_property
    def plans(self) -> tuple[tuple[ExecutionPlan, ...], ...]:
        """The valid plans of each, by GPUs."""
        return tuple(self.machine.plans(name) for name in self.names)

    def gpus(self, allocation: Allocation) -> int:
        """GPUs in use."""
        return sum(plan.gpus for plan in allocation if plan is not None)

    def fits(self, allocation: Allocation) -> bool:
        """Whether there are GPUs for all copies, within NVLink groups."""
        if self.gpus(allocation) > self.machine.gpus:
            return False
        stage = {name: p for name, p in zip(self.names, allocation, strict=True) if p is not None}
        return place(self.machine.gpus, self.machine.nvlink_group, stage, {}, {}) is not None

    def text(self, allocation: Allocation) -> str:
        """An allocation in words."""
        pairs = zip(self.names, allocation, strict=True)
        return ", ".join(f"{name} {plan}" for name, plan in pairs if plan is not None)


def even_splits(models: Models) -> list[Allocation]:
    """The even divisions of the GPUs that leave the fewest idle; each copy as small as possible.

    Empty if the GPUs do not suffice for all models.
    """
    least = [plans[0].gpus for plans in models.plans]
    if sum(least) > models.machine.gpus:
        return []
    shares = {
        tuple(each)
        for divided in even_shares(models.machine.gpus, least)
        for each in permutations(divided)
        if all(share >= few for share, few in zip(each, least, strict=True))
    }
    found = [_small_copies(models, each) for each in sorted(shares)]
    fitting = [each for each in found if models.fits(each)]
    most = max(map(models.gpus, fitting), default=0)
    return [each for each in dict.fromkeys(fitting) if models.gpus(each) == most]


def _small_copies(models: Models, shares: Sequence[int]) -> Allocation:
    """For each model, the plan with the most GPUs within its share; of these the most copies."""
    return tuple(
        max((plan for plan in plans if plan.gpus <= share), key=lambda plan: (plan.gpus, plan.dp))
        for plans, share in zip(models.plans, shares, strict=True)
    )


def neighbours(models: Models, allocation: Allocation, needed: Sequence[bool]) -> list[Allocation]:
    """Allocations one move away: a model changes its plan, with free GPUs or those of another.

    The other model gives up a copy, takes its next smaller plans, or all its GPUs if it is not
    `needed`.
    """
    found = dict.fromkeys(_moves(models, allocation, needed))
    found.pop(allocation, None)
    return [each for each in found if models.fits(each)]


def _moves(models: Models, before: Allocation, needed: Sequence[bool]) -> Iterator[Allocation]:
    count = len(models.names)
    free = models.machine.gpus - models.gpus(before)
    for index in range(count):
        for plan in _up_to(models, before, index, free):
            yield _with(before, index, plan)
    for taker, giver in product(range(count), range(count)):
        if taker != giver:
            for less in _less(models, before[giver], giver, needed[giver]):
                given = _with(before, giver, less)
                spare = models.machine.gpus - models.gpus(given)
                for plan in _up_to(models, given, taker, spare):
                    yield _with(given, taker, plan)


def _up_to(
    models: Models, allocation: Allocation, index: int, free: int
) -> Iterator[ExecutionPlan]:
    """Other plans of a model with at least its GPUs; as many GPUs as possible are used."""
    now = allocation[index]
    gpus = 0 if now is None else now.gpus
    by_tp: dict[int, ExecutionPlan] = {}
    for plan in models.plans[index]:
        if gpus <= plan.gpus <= gpus + free:
            by_tp[plan.tp] = plan  # the largest, because plans are sorted
    yield from by_tp.values()


def _less(
    models: Models, plan: ExecutionPlan | None, index: int, is_needed: bool
) -> Iterator[ExecutionPlan | None]:
    """Plans with fewer GPUs: for each tensor parallelism the largest; and none."""
    if plan is None:
        return
    if not is_needed:
        yield None
    by_tp = {each.tp: each for each in models.plans[index] if each.gpus < plan.gpus}
    yield from by_tp.values()


def _with(allocation: Allocation, index: int, plan: ExecutionPlan | None) -> Allocation:
    return (*allocation[:index], plan, *allocation[index + 1 :])
