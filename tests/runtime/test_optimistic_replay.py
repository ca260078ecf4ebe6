"""Agents that run ahead lose no call and commit in the order of the rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import Profile
from metropolis.rules.metrics import metric_named
from metropolis.runtime.replays.modes import Risk
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.schema import Trace, ValueDependencies
from metropolis.types import MetropolisError
from tests.runtime.optimistic_reference import OptimisticReference
from tests.small_traces import small_trace, small_traces

METRICS = {"chebyshev": 1, "euclidean": 2, "manhattan": 2}
"""Metric -> what a diagonal move of 1 counts, rounded up."""


def setting_for(trace: Trace, metric: str, instances: int, risk: float | None) -> Setting:
    velocity = trace.meta.max_velocity * METRICS[metric]
    meta = replace(trace.meta, max_velocity=velocity)
    setting = Setting.of(meta, SimulatedFleet.uniform("llama-3-8b/l4", instances))
    named = metric_named(metric, None, velocity, None)
    return replace(setting, metric=named, speculation=None if risk is None else Risk(risk))


@given(
    small_traces,
    st.sampled_from(sorted(METRICS)),
    st.integers(1, 4),
    st.sampled_from((0.0, 0.3, 0.7, 1.0)),
    st.sampled_from((1.0, 10.0, float("inf"))),
    st.sampled_from(("step", "fcfs")),
)
@settings(max_examples=60, deadline=None)
def test_every_call_completes_before_its_agent_step_commits(
    trace: Trace, metric: str, instances: int, risk: float, calls_half: float, policy: str
) -> None:
    setting = setting_for(trace, metric, instances, None)
    setting = replace(setting, policy=policy, speculation=Risk(risk, calls_half))
    result = replay(trace, "optimistic", setting)
    calls = trace.calls
    committed = result.committed_sim_s.reshape(trace.steps, trace.agents)
    assert np.isfinite(committed).all()
    assert (committed[1:] >= committed[:-1]).all()
    assert (result.dispatched_sim_s <= result.committed_sim_s).all()
    assert (result.instance >= 0).all()
    assert (result.completed_sim_s > result.sent_sim_s).all()
    assert (result.completed_sim_s <= committed[calls.step, calls.agent]).all()
    child = np.repeat(np.arange(len(calls)), np.diff(calls.parent_offsets))
    own = calls.agent[child] == calls.agent[calls.parents]  # another's may be sent again since
    assert (result.sent_sim_s[child] >= result.completed_sim_s[calls.parents])[own].all()
    assert result.makespan_sim_s == committed.max()
    assert result.wasted_calls >= 0
    again = replay(trace, "optimistic", setting)
    assert again.wasted_calls == result.wasted_calls
    for column in ("sent_sim_s", "completed_sim_s", "committed_sim_s", "instance"):
        assert (getattr(again, column) == getattr(result, column)).all(), column


@given(small_traces, st.sampled_from(sorted(METRICS)), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_an_agent_commits_after_those_whom_it_must_not_overtake(
    trace: Trace, metric: str, instances: int
) -> None:
    """When an agent commits a step, all agents in sight have committed the step before."""
    setting = setting_for(trace, metric, instances, 1.0)
    result = replay(trace, "optimistic", setting)
    committed = result.committed_sim_s.reshape(trace.steps, trace.agents)
    for step in range(1, trace.steps):
        at = trace.positions[step - 1].astype(float)
        far = np.abs(at[:, None] - at[None])
        distance = {
            "chebyshev": far.max(axis=2),
            "euclidean": np.hypot(far[..., 0], far[..., 1]),
            "manhattan": far.sum(axis=2),
        }[metric]
        agent, other = np.nonzero(distance <= setting.perception_radius)
        assert (committed[step, agent] >= committed[step - 1, other]).all()


@given(small_traces, st.sampled_from(sorted(METRICS)), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_without_speculation_it_is_the_versioned_mode(
    trace: Trace, metric: str, instances: int
) -> None:
    setting = setting_for(trace, metric, instances, None)
    off, versioned = (replay(trace, mode, setting) for mode in ("optimistic", "versioned"))
    assert off.wasted_calls == 0
    assert off.makespan_sim_s == versioned.makespan_sim_s


def in_sight(trace: Trace, setting: Setting) -> ValueDependencies:
    """The trace's dependencies on agents that stood in sight: the rule waits for these."""
    assert trace.dependencies is not None
    of = trace.dependencies
    row = np.repeat(np.arange(trace.steps * trace.agents), np.diff(of.offsets))
    step = row // trace.agents
    here = trace.positions[step, row % trace.agents].tolist()
    there = trace.positions[step - of.ago, of.writer].tolist()
    kept = np.array(
        [
            setting.metric.within((a, b), (c, d), setting.perception_radius, 0)
            for (a, b), (c, d) in zip(here, there, strict=True)
        ],
        bool,
    )
    counts = np.bincount(row[kept], minlength=len(of.offsets) - 1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ValueDependencies(offsets, of.writer[kept], of.ago[kept])


@given(small_traces, st.sampled_from(sorted(METRICS)), st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_it_equals_the_specification(
    trace: Trace, metric: str, instances: int, knows_values: bool
) -> None:
    setting = setting_for(trace, metric, instances, 1.0)
    seen = in_sight(trace, setting) if knows_values else None
    trace = replace(trace, dependencies=seen)
    reference = OptimisticReference(trace, setting)
    reference.run()
    result = replay(trace, "optimistic", setting)
    assert result.wasted_calls == reference.sent_calls - len(trace.calls)
    assert (result.committed_sim_s == reference.committed_sim_s).all()


def test_calls_that_wait_at_an_instance_are_promoted() -> None:
    narrow = Profile(w_ms=10.0, g_ms=0.05, h_ms=2.0, kv_capacity_tokens=1 << 20, max_sequences=1)
    promoted = 0
    for seed in range(12):
        trace = small_trace(seed, agents=6, steps=12, edge=14, radius=3)
        trace = replace(trace, dependencies=None)
        setting = setting_for(trace, "chebyshev", 2, 1.0)
        entry = replace(setting.fleet.instances[0], profile=narrow)
        setting = replace(setting, fleet=SimulatedFleet((entry,) * 2))
        reference = OptimisticReference(trace, setting)
        reference.run()
        result = replay(trace, "optimistic", setting)
        assert result.wasted_calls == reference.sent_calls - len(trace.calls)
        assert (result.committed_sim_s == reference.committed_sim_s).all()
        promoted += reference.promoted_calls
    assert promoted > 20


def test_an_agent_is_wrong_only_if_a_dependency_was_not_known() -> None:
    """In sight of each other, and without dependencies, all agents run to the end at once."""
    trace = small_trace(7, agents=8, steps=40, edge=12, radius=12)
    independent = ValueDependencies(
        np.zeros(trace.steps * trace.agents + 1, np.int64),
        *(np.zeros(0, np.int32) for _ in range(2)),
    )
    setting = setting_for(trace, "chebyshev", 8, 1.0)
    alone = replay(replace(trace, dependencies=independent), "optimistic", setting)
    assert alone.wasted_calls == 0
    assert alone.makespan_sim_s < replay(trace, "versioned", setting).makespan_sim_s
    assert alone.makespan_sim_s < replay(trace, "optimistic", setting).makespan_sim_s
    unknown = replay(replace(trace, dependencies=None), "optimistic", setting)
    assert replay(trace, "optimistic", setting).wasted_calls < unknown.wasted_calls


def test_running_ahead_takes_less_time_and_wastes_calls() -> None:
    trace = small_trace(7, agents=8, steps=40, edge=12, radius=2)
    ahead, versioned = (
        replay(trace, mode, setting_for(trace, "chebyshev", 8, 1.0))
        for mode in ("optimistic", "versioned")
    )
    assert ahead.makespan_sim_s < versioned.makespan_sim_s
    assert ahead.wasted_calls > 0


@pytest.mark.parametrize("mode", ["versioned", "optimistic"])
def test_a_replay_in_slices_is_the_replay(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_trace(7, agents=8, steps=40, edge=12, radius=2)
    setting = setting_for(trace, "chebyshev", 3, 0.7)
    whole = replay(trace, mode, setting)
    monkeypatch.setattr("metropolis.runtime.replays.core_replay._AGENT_STEPS_PER_SLICE", 150)
    sliced = replay(trace, mode, setting)
    assert sliced.wasted_calls == whole.wasted_calls
    assert (sliced.committed_sim_s == whole.committed_sim_s).all()


def test_under_load_fewer_agents_run_ahead() -> None:
    trace = small_trace(7, agents=8, steps=40, edge=12, radius=2)
    setting = setting_for(trace, "chebyshev", 1, None)
    loaded, idle = (
        replay(trace, "optimistic", replace(setting, speculation=Risk(1.0, calls_half)))
        for calls_half in (0.1, float("inf"))
    )
    assert loaded.wasted_calls < 0.5 * idle.wasted_calls


@pytest.mark.parametrize(
    "risk",
    [
        Risk(-0.1),
        Risk(1.1),
        Risk(float("nan")),
        Risk(0.5, 0.0),
        Risk(0.5, float("nan")),
    ],
)
def test_a_risk_is_from_0_to_1(risk: Risk) -> None:
    trace = small_trace(7, agents=2, steps=3, edge=8, radius=2)
    setting = replace(setting_for(trace, "chebyshev", 1, None), speculation=risk)
    with pytest.raises(MetropolisError, match="a number from 0 to 1, calls_half a positive one"):
        replay(trace, "optimistic", setting)


def test_plug_ins_and_different_instances_are_refused() -> None:
    trace = small_trace(7, agents=2, steps=3, edge=8, radius=2)
    setting = setting_for(trace, "chebyshev", 2, 0.5)
    for other in (
        replace(setting, policy="atlas"),
        replace(setting, dispatcher="kairos"),
        replace(setting, fleet=SimulatedFleet.parse(["llama-3-8b/l4", "llama-3-8b/h100"])),
    ):
        with pytest.raises(MetropolisError, match="optimistic needs equal instances"):
            replay(trace, "optimistic", other)
