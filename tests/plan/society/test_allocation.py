"""Allocations: what fits, what is even, and what is one move away."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.plan.machine import ExecutionPlan, Machine
from metropolis.plan.society.allocation import Allocation, Models, even_splits, neighbours
from metropolis.plan.society.fleet import Phase, loading_s, schedule_of
from metropolis.sim.fleet_schedule import FleetSchedule

NAMES = ("llama-3-70b", "vicuna-13b", "chatglm3-6b", "mistral-7b")
MACHINES = {gpus: Machine(gpus) for gpus in (4, 6, 8)}


@st.composite
def walks(draw: st.DrawFn) -> tuple[Models, list[Allocation]]:
    """Allocations that random moves from an even split lead to."""
    random = Random(draw(st.integers(0, 1 << 30)))
    names = NAMES[: random.randint(1, 3)] if random.random() < 0.7 else NAMES[1:]
    models = Models(MACHINES[random.choice((4, 6, 8))], names)
    needed = [random.random() < 0.7 for _ in names]
    path = [random.choice(even_splits(models))]
    while len(path) < 5 and (found := neighbours(models, path[-1], needed)):
        path.append(random.choice(found))
    return models, path


@given(walks())
@settings(max_examples=40, deadline=None)
def test_moves_lead_to_allocations_that_fit(walk: tuple[Models, list[Allocation]]) -> None:
    models, path = walk
    for allocation in path:
        assert models.fits(allocation)
        for plan, plans in zip(allocation, models.plans, strict=True):
            assert plan is None or plan in plans
    assert all(one != other for one, other in pairwise(path))


@given(walks())
@settings(max_examples=40, deadline=None)
def test_a_schedule_has_the_copies_of_each_phase(walk: tuple[Models, list[Allocation]]) -> None:
    models, path = walk
    phases = [Phase(10 * number, allocation) for number, allocation in enumerate(path)]
    schedule = schedule_of(models, phases)
    group = models.machine.nvlink_group
    for (_, allocation), placed in zip(phases, schedule.phases, strict=True):
        copies = [schedule.fleet.instances[index] for index in placed.gpus]
        for name, plan in zip(models.names, allocation, strict=True):
            mine = [each.tensor_parallel for each in copies if each.model == name]
            assert mine == ([] if plan is None else [plan.tp] * plan.dp)
        for gpus in placed.gpus.values():
            assert len({gpu // group for gpu in gpus}) == -(-len(gpus) // group)
    for number in range(1, len(path)):
        before, after = schedule.phases[number - 1], schedule.phases[number]
        coming = [
            schedule.load_s[index]
            for index, gpus in after.gpus.items()
            if before.gpus.get(index) != gpus
        ]
        assert max(coming, default=0.0) >= loading_s(models, path[number - 1], path[number])


def test_even_splits_use_all_gpus_with_small_copies() -> None:
    models = Models(MACHINES[8], NAMES[:3])
    assert even_splits(models) == [(ExecutionPlan(1, 2), ExecutionPlan(3, 1), ExecutionPlan(3, 1))]
    assert even_splits(Models(Machine(2), NAMES[:3])) == []


def test_a_copy_that_the_next_phase_has_stays_on_its_gpus() -> None:
    models = Models(MACHINES[8], NAMES[:2])
    first = (ExecutionPlan(2, 2), ExecutionPlan(4, 1))
    second = (ExecutionPlan(1, 2), ExecutionPlan(6, 1))
    schedule: FleetSchedule = schedule_of(models, [Phase(0, first), Phase(5, second)])
    before, after = (each.gpus for each in schedule.phases)
    assert all(after[index] == gpus for index, gpus in before.items() if index in after)
    assert len(set(after) - set(before)) == 2
    assert loading_s(models, first, second) == models.machine.load_s(NAMES[1], ExecutionPlan(1, 1))
    assert loading_s(models, second, second) == 0.0
