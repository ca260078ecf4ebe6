"""The search: never worse than an even split, and changes where the mix of models changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.model_choice import ModelChoice
from metropolis.plan.machine import LoadingTime, Machine
from metropolis.plan.society.allocation import Models, even_splits, neighbours
from metropolis.plan.society.estimate import Estimate
from metropolis.plan.society.fleet import Phase
from metropolis.plan.society.judge import Judge, stretches
from metropolis.plan.society.phases import first_steps, work_s
from metropolis.plan.society.search import _judged_path, plan_society
from metropolis.trace.schema import Calls, Trace
from metropolis.types import MetropolisError
from tests.small_traces import small_trace

CHOICE = ModelChoice.parse(["plan=vicuna-13b", "converse=chatglm3-6b"])
MACHINE = Machine(4)


def society(seed: int, steps: int = 24) -> Trace:
    trace = small_trace(seed, agents=6, steps=steps, edge=30, radius=2)
    return CHOICE.applied_to(trace)


def halves(trace: Trace) -> Trace:
    """Its agents plan in the first half of the day and converse in the second."""
    calls: Calls = trace.calls
    is_plan = np.array(calls.functions)[calls.function] == "plan"
    return replace(trace, calls=calls.keep(is_plan == (calls.step < trace.steps // 2)))


@given(st.integers(0, 1 << 30), st.sampled_from(["versioned", "lockstep"]), st.booleans())
@settings(max_examples=8, deadline=None)
def test_a_plan_is_never_worse_than_an_even_split(seed: int, mode: str, is_halved: bool) -> None:
    trace = society(seed)
    trace = halves(trace) if is_halved else trace
    plan = plan_society(trace, MACHINE, mode=mode)
    assert plan.best.makespan_sim_s <= plan.even.makespan_sim_s
    assert plan.even.phases[0].allocation in even_splits(plan.models)
    for each in plan.candidates:
        assert each.phases[0].step == 0
        assert np.isfinite(each.result.completed_sim_s).all()
        replayed = Judge(trace, plan.models, mode, lambda _: None).day(each.phases)
        assert replayed.makespan_sim_s == each.makespan_sim_s


def long_halves() -> Trace:
    """With so much work that loading pays."""
    trace = halves(society(5, steps=40))
    calls = trace.calls
    return replace(trace, calls=replace(calls, output_tokens=calls.output_tokens * 50))


def test_a_plan_changes_where_the_mix_changes_if_loading_pays() -> None:
    trace = long_halves()
    plan = plan_society(trace, MACHINE, phases=2)
    assert plan.changing is not None
    assert plan.best is plan.changing
    assert plan.firsts == (0, 20)
    first, second = (each.allocation for each in plan.changing.phases)
    assert plan.models.names == ("chatglm3-6b", "vicuna-13b")
    assert first[0] is None
    assert second[1] is None
    slow = LoadingTime(least_s=1e5, most_s=1e5)
    assert plan_society(trace, Machine(4, loading=slow), phases=2).changing is None


def test_changes_that_do_not_pay_are_left_out() -> None:
    trace = society(3)
    machine = Machine(4, loading=LoadingTime(least_s=1e4, most_s=1e4))
    models = Models(machine, ("chatglm3-6b", "vicuna-13b"))
    even = even_splits(models)[0]
    other = next(each for each in neighbours(models, even, (True, True)) if all(each))
    judge = Judge(trace, models, "versioned", lambda _: None)
    path = [Phase(0, even), Phase(8, other), Phase(16, even)]
    found = _judged_path(judge, stretches(trace, models, [0, 8, 16]), path)
    assert found.phases == (path[0], path[2])
    assert found.makespan_sim_s == judge.day(path[:1]).makespan_sim_s
    assert judge.day(path).makespan_sim_s > found.makespan_sim_s + 1e4


def test_phases_begin_where_the_mix_changes() -> None:
    models = Models(MACHINE, ("chatglm3-6b", "vicuna-13b"))
    trace = halves(society(3, steps=48))
    trace = replace(trace, meta=replace(trace.meta, step_s=600.0))
    assert first_steps(trace, models, 2) == [0, 24]
    assert first_steps(trace, models, 1) == [0]
    assert 24 in first_steps(trace, models, None)
    one_mix = replace(trace, calls=trace.calls.keep(trace.calls.model == 0))
    assert first_steps(one_mix, models, None) == [0]
    assert len(first_steps(trace, models, 24)) == 24


@given(st.integers(0, 1 << 30), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_samples_stand_for_their_phases(seed: int, calls_max: int) -> None:
    trace = society(seed)
    models = Models(MACHINE, ("chatglm3-6b", "vicuna-13b"))
    day = stretches(trace, models, [0, 7, 15], calls_max)
    assert sum(each.whole.steps for each in day) == trace.steps
    assert sum(len(each.whole.calls) for each in day) == len(trace.calls)
    for each in day:
        assert each.factor >= 1 - 1e-9
        sample, whole = work_s(each.sample, models), work_s(each.whole, models)
        assert each.factor * sample.sum() == pytest.approx(whole.sum())
        assert each.needed == tuple((whole > 0).tolist())
    even, sample = even_splits(models)[0], day[0].sample
    judged = Judge(trace, models, "versioned", lambda _: None).seconds(day[0], even)
    alone = Judge(sample, models, "versioned", lambda _: None).day([Phase(0, even)])
    assert judged == pytest.approx(day[0].factor * alone.makespan_sim_s)


@given(st.integers(0, 1 << 30))
@settings(max_examples=10, deadline=None)
def test_both_bounds_of_the_estimate_are_bounds(seed: int) -> None:
    trace = society(seed)
    models = Models(MACHINE, ("chatglm3-6b", "vicuna-13b"))
    even = even_splits(models)[0]
    judge = Judge(trace, models, "versioned", lambda _: None)
    makespan_s = judge.day([Phase(0, even)]).makespan_sim_s
    assert Estimate(trace, models).seconds(even) <= 2 * makespan_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("choice", "machine", "message"),
    [
        ("vicuna-13b", Machine(17), "17 GPUs; a society is planned for at most 16"),
        (
            "plan=llama-3-70b,converse=vicuna-13b",
            Machine(2),
            "do not suffice .* need: llama-3-70b 2",
        ),
        (
            "vicuna-12b",
            MACHINE,
            r"ask 'vicuna-12b'; .* \(did you mean 'vicuna-13b'\?\); .* with --model FUNCTION=NAME",
        ),
        ("baize-13b", MACHINE, r"a call of baize-13b has .* tokens; its context has 2,048"),
    ],
)
def test_what_cannot_be_planned_is_refused(choice: str, machine: Machine, message: str) -> None:
    trace = society(1)
    if choice == "baize-13b":
        long = trace.calls.prompt_tokens + 2048
        trace = replace(trace, calls=replace(trace.calls, prompt_tokens=long))
    with pytest.raises(MetropolisError, match=message):
        plan_society(ModelChoice.parse([choice]).applied_to(trace), machine)


def test_calls_without_a_model_are_refused() -> None:
    trace = society(1)
    nameless = replace(trace.calls, models=("", "vicuna-13b"))
    with pytest.raises(MetropolisError, match="have no model; name one for each function"):
        plan_society(replace(trace, calls=nameless), MACHINE)
    with pytest.raises(MetropolisError, match="no calls; there is nothing to plan"):
        plan_society(replace(trace, calls=Calls.empty()), MACHINE)
