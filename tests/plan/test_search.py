"""Searches: against each other, against all schedules, and against a lower bound."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings

from metropolis.plan.application import Application, Item, Node
from metropolis.plan.lengths import LengthDistribution
from metropolis.plan.machine import Machine
from metropolis.plan.schedule import simulated
from metropolis.plan.search.bound import Bounds
from metropolis.plan.search.exhaustive import exhaustive_stages
from metropolis.plan.search.methods import METHODS, RULES, search
from metropolis.plan.simulated_run import simulate_run
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import columns_of, drawn
from tests.plan.cases import FAST_LOADS, LENGTHS, fresh, timelines

EFFORT = 100_000


@settings(max_examples=25, deadline=None)
@given(timelines())
def test_ours_is_no_later_than_any_rule_and_no_earlier_than_the_bound(timeline: Timeline) -> None:
    ends_s = {method: search(fresh(timeline), method, EFFORT).ends_s for method in METHODS}
    assert ends_s["ours"] == min(ends_s.values())
    assert Bounds(timeline).whole_s <= ends_s["ours"] * (1 + 1e-9)


def test_ours_is_no_later_than_a_rule_whose_end_is_estimated_too_late() -> None:
    model = "oasst-pythia-12b"
    items = Item("a", (41, 5, 9), (2, 2, 2)), Item("b", (12, 10, 41), (1, 1, 1))
    nodes = (Node("n0", model, ("s",), chain=True), Node("n1", model, ("n0",)))
    lengths = {model: LengthDistribution.of([1])}
    machine, random = Machine(tp_max=4), np.random.default_rng(0)
    columns = columns_of(Application("two", {"s": items}, nodes))
    timeline = Timeline(machine, drawn(columns, lengths, machine.shapes, random))
    ends_s = {method: search(fresh(timeline), method).ends_s for method in METHODS}
    assert ends_s["ours"] == min(ends_s.values())


@settings(max_examples=25, deadline=None)
@given(timelines())
def test_a_run_whose_lengths_are_as_planned_takes_as_long(timeline: Timeline) -> None:
    for method in METHODS:
        schedule = search(timeline, method, EFFORT)
        assert simulate_run(fresh(timeline), schedule) == schedule


@settings(max_examples=15, deadline=None)
@given(timelines(nodes_max=2))
def test_no_rule_is_earlier_than_all_schedules(timeline: Timeline) -> None:
    best = exhaustive_stages(timeline)
    assert best is not None
    best_s = simulated(timeline, "best", best).ends_s
    assert exhaustive_stages(timeline, best_s) is None
    assert Bounds(timeline).whole_s <= best_s * (1 + 1e-9)
    for method in RULES:
        assert search(fresh(timeline), method).ends_s >= best_s


def test_models_that_do_not_fit_together_run_one_after_the_other() -> None:
    items = tuple(Item(f"{key}", (50,)) for key in range(5))
    nodes = tuple(Node(f"n{index}", "mpt-7b", ("s",), max_tokens=20) for index in range(2))
    machine = Machine(gpus=1, loading=FAST_LOADS)
    columns = columns_of(Application("two", {"s": items}, nodes))
    random = np.random.default_rng(0)
    timeline = Timeline(machine, drawn(columns, LENGTHS, machine.shapes, random))
    best = exhaustive_stages(timeline)
    assert best is not None
    assert [len(stage.plans) for stage in best] == [1, 1]


@settings(max_examples=25, deadline=None)
@given(timelines())
def test_without_preemption_every_model_is_loaded_once(timeline: Timeline) -> None:
    for method in ("greedy-no-preemption", "min-no-preemption"):
        stages = search(fresh(timeline), method).stages
        loads = [name for stage in stages for name, node in stage.nodes.items() if node.loads]
        assert sorted(loads) == sorted(timeline.workload)


@settings(max_examples=10, deadline=None)
@given(timelines())
def test_a_search_depends_on_its_effort_alone(timeline: Timeline) -> None:
    first, second = (search(fresh(timeline), "ours", EFFORT) for _ in range(2))
    assert first == second
    assert search(fresh(timeline), "ours", 0).ends_s < inf


@pytest.mark.parametrize("model", ["vicuna-13b", "codellama-34b"])
def test_batches_that_the_memory_limits_are_not_earlier_than_the_bound(model: str) -> None:
    items = tuple(Item(f"{key}", (10,)) for key in range(600))
    machine, lengths = Machine(gpus=1), {model: LengthDistribution.of([2000])}
    columns = columns_of(Application("long", {"s": items}, (Node("n", model, ("s",)),)))
    workload = drawn(columns, lengths, machine.shapes, np.random.default_rng(0))
    timeline = Timeline(machine, workload)
    assert Bounds(timeline).whole_s <= search(timeline, "max").ends_s * (1 + 1e-9)


def test_a_schedule_may_have_more_than_a_hundred_stages() -> None:
    items, nodes = (Item("0", (20,)),), [Node(f"n{i}", "mpt-7b", ("s",)) for i in range(110)]
    machine, random = Machine(gpus=1, loading=FAST_LOADS), np.random.default_rng(0)
    columns = columns_of(Application("many", {"s": items}, tuple(nodes)))
    timeline = Timeline(machine, drawn(columns, LENGTHS, machine.shapes, random))
    assert len(search(timeline, "ours", 0).stages) == 110
