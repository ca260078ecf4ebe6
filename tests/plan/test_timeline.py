"""Stages in virtual time."""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.search.candidates import kept, plans_of, ready_nodes, used_gpus
from metropolis.plan.timeline import Boundary, Moment, Outlook, Stage, Timeline
from metropolis.plan.work import Remaining, remaining_after, run
from tests.plan.cases import timelines

MOSTLY = st.sampled_from([True, True, True, False])


def random_stage(timeline: Timeline, moment: Moment, data: st.DataObject) -> Stage:
    """Any stage in which a node can finish; often what runs goes on."""
    stage: dict[str, ExecutionPlan] = dict(kept(moment)) if data.draw(st.booleans()) else {}
    for name in timeline.workload:
        if name not in ready_nodes(timeline, moment, stage):
            continue
        plan = data.draw(st.sampled_from(plans_of(timeline, name)))
        changed = {**stage, name: plan}
        if used_gpus(changed) <= timeline.machine.gpus and (not stage or data.draw(MOSTLY)):
            stage = changed
    ready = ready_nodes(timeline, moment, stage)
    return {name: plan for name, plan in stage.items() if name in ready}


def follow(timeline: Timeline, data: st.DataObject) -> list[Outlook]:
    """Random stages until all is complete."""
    moment, outlooks = timeline.start(), list[Outlook]()
    while moment.unfinished:
        stage = random_stage(timeline, moment, data)
        boundary = None
        if data.draw(st.booleans()):
            boundary = Boundary(data.draw(st.sampled_from(sorted(stage))), 2)
        outlook = timeline.outlook(moment, stage, boundary)
        assert outlook is not None
        assert moment.time_s < outlook.ends_s < inf or outlook.ends_s == moment.time_s
        outlooks.append(outlook)
        moment = timeline.after(outlook)
        assert len(outlooks) < 60
    for name, workload in timeline.workload.items():  # each request is complete, after its needs
        ends = moment.completed_s[name]
        assert np.isfinite(ends).all()
        for need in workload.needs:
            assert (moment.completed_s[need.node][need.answers] < ends[need.rows]).all()
        chained = workload.previous >= 0
        assert (ends[workload.previous[chained]] < ends[chained]).all()
    return outlooks


@settings(max_examples=40)
@given(timelines(), st.data())
def test_every_request_is_complete_after_what_it_needs(
    timeline: Timeline, data: st.DataObject
) -> None:
    outlooks = follow(timeline, data)
    for outlook in outlooks:
        used = [g for each in outlook.moment.running.values() for c in each.gpus for g in c]
        assert len(used) == len(set(used)) <= timeline.machine.gpus


@settings(max_examples=40)
@given(timelines(nodes_max=1), st.floats(0, 1) | st.just(1.0), st.data())
def test_an_interruption_loses_and_repeats_nothing(
    timeline: Timeline, share: float, data: st.DataObject
) -> None:
    (name,) = timeline.workload
    whole = Remaining.all_of(timeline.workload[name])
    plan = data.draw(st.sampled_from(plans_of(timeline, name)))
    profile = timeline.profile(whole.workload.node.model, plan.tp)
    ready_s = np.zeros(len(whole.rows))
    alone = run(whole, plan, profile, ready_s)
    at_s = share * alone.finished_s
    rest = remaining_after(whole, plan, profile, ready_s, at_s)
    completed = alone.completed_s <= at_s
    assert sorted(rest.rows) == np.flatnonzero(~completed).tolist()
    assert (rest.generated < whole.workload.output_tokens[rest.rows]).all()
    assert (rest.generated >= 0).all()
    assert 0 <= alone.flops_until(at_s) <= whole.flops * (1 + 1e-9)
    assert rest.flops <= whole.flops
    if share == 1:
        assert not len(rest.rows)
        return
    again_s = run(rest, plan, profile, ready_s[rest.rows]).finished_s * share
    second = remaining_after(rest, plan, profile, ready_s[rest.rows], again_s)
    before = dict(zip(rest.rows.tolist(), rest.generated.tolist(), strict=True))
    for row, tokens in zip(second.rows.tolist(), second.generated.tolist(), strict=True):
        assert tokens >= before[row]


@settings(max_examples=30)
@given(timelines(), st.data())
def test_a_model_that_continues_is_not_loaded_again(
    timeline: Timeline, data: st.DataObject
) -> None:
    moment = timeline.start()
    stage = random_stage(timeline, moment, data)
    first = timeline.outlook(moment, stage)
    assert first is not None
    following = timeline.after(first)
    again = timeline.outlook(following, kept(following))
    assert again is not None
    for name, started in following.running.items():
        assert again.moment.running[name] is started
        before = first.predictions[name]
        if not timeline.workload[name].needs:
            assert again.predictions[name].finished_s == before.finished_s
