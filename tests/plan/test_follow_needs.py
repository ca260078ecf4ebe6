"""The dynamic scheduler."""

from __future__ import annotations

from metropolis.plan.follow import Follower
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.timeline import PlannedStage, Stage

ONE, TWO = ExecutionPlan(1, 1), ExecutionPlan(2, 1)


def test_a_model_continues_while_the_model_that_it_needs_changes_its_plan() -> None:
    unfinished = {"a", "b", "c", "d"}

    def fits(stage: Stage) -> bool:
        needs_b = "c" not in stage or "b" not in unfinished or "b" in stage
        return needs_b and sum(plan.gpus for plan in stage.values()) <= 5

    first = {"a": ONE, "b": ONE, "c": TWO}
    second = {"d": ONE, "b": TWO, "c": TWO}
    follower = Follower([PlannedStage(first), PlannedStage(second)], fits)
    running = follower.next_stage(unfinished, {})
    assert running == first
    unfinished.remove("a")
    assert follower.next_stage(unfinished, running) == second
