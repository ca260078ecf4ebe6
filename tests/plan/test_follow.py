"""The dynamic scheduler: with any order of finishing, every node runs, and nothing else happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.plan.follow import Follower
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.search.candidates import used_gpus
from metropolis.plan.timeline import Boundary, PlannedStage, Stage

GPUS, BOUNDED_STAGES = 4, 3


@dataclass(frozen=True)
class Planned:
    """A schedule that fits: stages, and the nodes that finish at the end of each; none of them
    where the stage ends at its boundary."""

    needs: dict[str, frozenset[str]]
    stages: tuple[PlannedStage, ...]
    finishes: tuple[frozenset[str], ...]

    @property
    def plans(self) -> list[Stage]:
        return [stage.plans for stage in self.stages]


@st.composite
def schedules(draw: st.DrawFn) -> Planned:
    names = "abcdef"[: draw(st.integers(1, 6))]
    needs = {
        name: frozenset(draw(st.sets(st.sampled_from(names[:index]), max_size=2)) if index else ())
        for index, name in enumerate(names)
    }
    unfinished, stages, finishes = set(names), [], []
    while unfinished:
        stage: dict[str, ExecutionPlan] = {}
        for name in names:
            free = GPUS - used_gpus(stage)
            is_ready = name in unfinished and needs[name] & unfinished <= stage.keys()
            if is_ready and free and (not stage or draw(st.booleans())):
                stage[name] = draw(st.sampled_from(plans_of(free)))
        able = [name for name in stage if not needs[name] & unfinished]
        is_bounded = len(stages) < BOUNDED_STAGES and draw(st.booleans())
        boundary = Boundary(draw(st.sampled_from(able)), 1) if is_bounded else None
        ends = frozenset(draw(st.sets(st.sampled_from(able), min_size=not is_bounded)))
        stages.append(PlannedStage(stage, boundary))
        finishes.append(ends)
        unfinished -= ends
    return Planned(needs, tuple(stages), tuple(finishes))


def plans_of(gpus: int) -> list[ExecutionPlan]:
    shapes = [(dp, tp) for dp in (1, 2, 3, 4) for tp in (1, 2, 4) if dp * tp <= gpus]
    return [ExecutionPlan(*shape) for shape in shapes]


class Run:
    """A run that follows a schedule and checks every stage."""

    def __init__(self, planned: Planned) -> None:
        self.needs, self.unfinished = planned.needs, set(planned.needs)
        self.running: Stage = {}
        self.stages: list[Stage] = []
        self.follower = Follower(planned.stages, self.fits)

    def fits(self, stage: Stage) -> bool:
        return used_gpus(stage) <= GPUS and all(
            self.needs[name] & self.unfinished <= stage.keys() for name in stage
        )

    def step(self, choose: Callable[[list[str]], frozenset[str]]) -> None:
        self.running = self.follower.next_stage(self.unfinished, self.running)
        self.stages.append(self.running)
        assert self.running, "a stage has begun that runs nothing"
        assert self.running.keys() <= self.unfinished
        assert self.fits(self.running)
        able = [name for name in self.running if not self.needs[name] & self.unfinished]
        self.unfinished -= choose(able)


@settings(max_examples=60)
@given(schedules(), st.data())
def test_every_node_runs_in_any_order_of_finishing(planned: Planned, data: st.DataObject) -> None:
    run = Run(planned)
    while run.unfinished:  # every step finishes a node, or reaches a boundary
        run.step(
            lambda able: frozenset(
                data.draw(st.sets(st.sampled_from(able), min_size=not run.follower.boundary))
            )
        )


@settings(max_examples=60)
@given(schedules())
def test_what_was_planned_happens_if_nodes_finish_as_planned(planned: Planned) -> None:
    run = Run(planned)
    for (stage, _), ends in zip(planned.stages, planned.finishes, strict=True):
        run.step(lambda _, ends=ends: ends)  # type: ignore[misc]
        assert run.running == stage


@settings(max_examples=60)
@given(schedules(), st.data())
def test_a_node_is_interrupted_for_others_or_by_the_plan(
    planned: Planned, data: st.DataObject
) -> None:
    run = Run(planned)
    while run.unfinished:
        kept = {name: plan for name, plan in run.running.items() if name in run.unfinished}
        unfinished = {*run.unfinished}
        run.step(lambda able: frozenset({data.draw(st.sampled_from(able))}))
        for name, plan in kept.items():
            stage = run.stages[-1]
            if name not in stage and stage not in planned.plans:
                assert used_gpus({**stage, name: plan}) > GPUS or not (
                    run.needs[name] & unfinished <= stage.keys()
                )


@settings(max_examples=60)
@given(schedules(), st.data())
def test_a_stage_begins_after_all_of_the_stages_before(
    planned: Planned, data: st.DataObject
) -> None:
    run, begun = Run(planned), set[tuple[str, ExecutionPlan]]()
    while run.unfinished:
        before, finished = run.running, planned.needs.keys() - run.unfinished
        run.step(lambda able: frozenset({data.draw(st.sampled_from(able))}))
        starts = {*run.stages[-1].items()} - before.items()
        for pair in starts:
            index = next(i for i, stage in enumerate(planned.plans) if pair in stage.items())
            for earlier in planned.plans[:index]:
                assert all(
                    each in begun | starts or each[0] in finished for each in earlier.items()
                )
        begun |= starts


def followed(
    stages: list[dict[str, tuple[int, int]]], finishes: str, gpus: int = GPUS
) -> list[str]:
    """The stages that follow if single nodes finish in that order; without needs."""
    plans = [{name: ExecutionPlan(*plan) for name, plan in stage.items()} for stage in stages]
    unfinished = {name for stage in plans for name in stage}
    follower = Follower([*map(PlannedStage, plans)], lambda stage: used_gpus(stage) <= gpus)
    running: Stage = {}
    shown = []
    for name in ["", *finishes]:
        unfinished.discard(name)
        running = follower.next_stage(unfinished, running) if unfinished else {}
        shown.append(" ".join(f"{each}{plan.dp}x{plan.tp}" for each, plan in running.items()))
    return shown


STAGES = [{"a": (1, 1), "b": (1, 1)}, {"b": (1, 1), "c": (1, 1)}, {"c": (2, 1)}]


def test_nodes_finish_as_planned() -> None:
    assert followed(STAGES, "abc", 2) == ["a1x1 b1x1", "b1x1 c1x1", "c2x1", ""]


def test_a_node_of_no_later_stage_runs_to_its_end() -> None:
    """`b` finishes first; `a` continues beside `c`, which gets both GPUs when `a` has finished."""
    assert followed(STAGES, "bac", 2) == ["a1x1 b1x1", "a1x1 c1x1", "c2x1", ""]
    stages = [{"a": (1, 1), "b": (1, 1)}, {"c": (2, 1)}]
    assert followed(stages, "abc", 2) == ["a1x1 b1x1", "b1x1", "c2x1", ""]


def test_later_stages_wait_for_a_node_that_does_not_fit() -> None:
    stages = [{"a": (2, 1), "b": (1, 1)}, {"c": (2, 1)}, {"d": (1, 1)}]
    expected = ["a2x1 b1x1", "a2x1", "c2x1", "d1x1", ""]
    assert followed(stages, "bacd", 3) == expected
    stages[1] |= {"b": (1, 1)}  # `b` has finished before this stage
    assert followed(stages, "bacd", 3) == expected


def test_a_stage_whose_nodes_have_finished_is_passed_over() -> None:
    stages = [{"a": (1, 1), "b": (1, 1)}, {"a": (1, 1), "b": (1, 1)}, {"c": (1, 1)}, {"a": (1, 1)}]
    assert followed(stages, "bac")[1] == "c1x1 a1x1"


def test_nodes_left_after_the_last_stage_run_with_their_last_plans() -> None:
    stages = [{"a": (1, 1), "b": (3, 1)}, {"a": (4, 1)}]
    assert followed(stages, "ab") == ["a1x1 b3x1", "b3x1", ""]
    stages = [{"a": (2, 1), "b": (2, 1)}, {"b": (4, 1)}, {"a": (3, 1)}]
    assert followed(stages, "ba")[1:] == ["a3x1", ""]
