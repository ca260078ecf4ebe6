"""Every mode replays the trace's history: each call once, after all its dependencies."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.runtime.replays.modes import MODES, Mode
from metropolis.runtime.replays.replay import ReplayResult, Setting, mine_dependencies, replay
from metropolis.sim.engine_rules import ENGINE_RULES, VLLM_V0, EngineRules
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from tests.small_traces import small_trace, small_traces

SCHEDULED = [mode for mode in MODES.values() if not (mode.is_bound or mode.is_optimistic)]
BY_POSITION = [mode for mode in SCHEDULED if not mode.needs_values]


def setting_for(
    trace: Trace, *, instances: int = 2, policy: str = "step", dispatcher: str | None = None
) -> Setting:
    setting = Setting.of(trace.meta, SimulatedFleet.uniform("llama-3-8b/l4", instances))
    return replace(setting, policy=policy, dispatcher=dispatcher)


def assert_complete(trace: Trace, result: ReplayResult) -> None:
    """Every agent-step follows the agent's previous one, every call its parents."""
    steps, agents = trace.steps, trace.agents
    calls = trace.calls
    dispatched = result.dispatched_sim_s.reshape(steps, agents)
    committed = result.committed_sim_s.reshape(steps, agents)
    assert np.isfinite(committed).all()
    assert (committed >= dispatched).all()
    assert (dispatched[1:] >= committed[:-1]).all()
    assert np.isfinite(result.completed_sim_s).all()
    assert (result.sent_sim_s >= dispatched[calls.step, calls.agent]).all()
    assert (result.completed_sim_s <= committed[calls.step, calls.agent]).all()
    child = np.repeat(np.arange(len(calls)), np.diff(calls.parent_offsets))
    assert (result.sent_sim_s[child] >= result.completed_sim_s[calls.parents]).all()


def assert_causal(trace: Trace, setting: Setting, result: ReplayResult) -> None:
    assert_complete(trace, result)
    steps, agents = trace.steps, trace.agents
    dispatched = result.dispatched_sim_s.reshape(steps, agents)
    committed = result.committed_sim_s.reshape(steps, agents)
    graph = mine_dependencies(trace, setting)
    row = np.repeat(np.arange(steps * agents), np.diff(graph.offsets))
    step, agent = row // agents, row % agents
    later = step > 0  # synchronised before the step …
    assert (
        dispatched[step[later], agent[later]] >= committed[step[later] - 1, graph.partners[later]]
    ).all()
    earlier = step < steps - 1  # … and after it
    assert (
        dispatched[step[earlier] + 1, agent[earlier]]
        >= committed[step[earlier], graph.partners[earlier]]
    ).all()


SERVED = (("step", None), ("fcfs", None), ("atlas", None), ("step+kairos", "kairos"))


FLEETS = (
    *(SimulatedFleet.uniform("llama-3-8b/l4", count) for count in (1, 2, 3)),
    SimulatedFleet.uniform("llama-3-8b/l4", 2).under(VLLM_V0),
    SimulatedFleet.parse(["llama-3-8b/l4", "llama-3-8b/h100:2", "llama-3-70b/a100-tp4"]),
)


@given(small_traces, st.sampled_from(FLEETS), st.sampled_from(SERVED))
@settings(max_examples=60, deadline=None)
def test_every_mode_keeps_what_the_trace_proves_necessary(
    trace: Trace, fleet: SimulatedFleet, served: tuple[str, str | None]
) -> None:
    policy, dispatcher = served
    setting = replace(setting_for(trace, policy=policy, dispatcher=dispatcher), fleet=fleet)
    bound_sim_s = replay(trace, "critical_path", setting).makespan_sim_s
    for mode in BY_POSITION:
        result = replay(trace, mode.name, setting)
        assert_causal(trace, setting, result)
        assert result.makespan_sim_s >= bound_sim_s * (1 - 1e-9)


@given(small_traces, st.sampled_from(FLEETS), st.data())
@settings(max_examples=30, deadline=None)
def test_the_critical_path_knows_of_shared_prefixes(
    trace: Trace, fleet: SimulatedFleet, data: st.DataObject
) -> None:
    calls, shared = trace.calls, data.draw(st.integers(1, 300))
    prefixes = {
        "prompt_tokens": calls.prompt_tokens + shared,
        "prefix_id": np.full(len(calls), 7),
        "prefix_tokens": np.full(len(calls), shared, np.int32),
    }
    trace = replace(trace, calls=replace(calls, **prefixes))
    setting = replace(setting_for(trace), fleet=fleet, prefix_reuse=True)
    bound_sim_s = replay(trace, "critical_path", setting).makespan_sim_s
    for mode in BY_POSITION:
        makespan_sim_s = replay(trace, mode.name, setting).makespan_sim_s
        assert makespan_sim_s >= bound_sim_s * (1 - 1e-9), mode


@given(small_traces, st.sampled_from(FLEETS), st.sampled_from(SERVED))
@settings(max_examples=60, deadline=None)
def test_the_oracle_of_values_waits_for_dependencies_by_value_only(
    trace: Trace, fleet: SimulatedFleet, served: tuple[str, str | None]
) -> None:
    policy, dispatcher = served
    setting = replace(setting_for(trace, policy=policy, dispatcher=dispatcher), fleet=fleet)
    result = replay(trace, "oracle_values", setting)
    assert_complete(trace, result)
    dispatched = result.dispatched_sim_s.reshape(trace.steps, trace.agents)
    committed = result.committed_sim_s.reshape(trace.steps, trace.agents)
    known = trace.dependencies
    assert known is not None
    for step in range(trace.steps):
        for agent in range(trace.agents):
            row = step * trace.agents + agent
            needs = slice(known.offsets[row], known.offsets[row + 1])
            ends = committed[step - known.ago[needs], known.writer[needs]].tolist()
            own = committed[step - 1, agent] if step else 0.0
            assert dispatched[step, agent] == max([own, *ends])


def test_a_window_forgets_what_happened_before_it() -> None:
    trace = small_trace(7, agents=4, steps=12, edge=8, radius=2)
    window = trace.window(5, 9)
    whole, cut = trace.dependencies, window.dependencies
    assert whole is not None
    assert cut is not None
    assert len(cut.offsets) == 4 * 4 + 1
    for row in range(16):
        needs = slice(whole.offsets[20 + row], whole.offsets[21 + row])
        known = whole.ago[needs] <= row // 4
        here = slice(cut.offsets[row], cut.offsets[row + 1])
        assert cut.ago[here].tolist() == whole.ago[needs][known].tolist()
        assert cut.writer[here].tolist() == whole.writer[needs][known].tolist()
    assert len(cut.ago) > 0
    assert trace.first_agents(2).dependencies is None


def test_a_trace_without_steps_is_refused() -> None:
    trace = small_trace(7, agents=2, steps=3, edge=8, radius=2)
    with pytest.raises(MetropolisError, match="has 0 steps of 2 agents; at least one step of"):
        replay(trace.window(3, 3), "lockstep", setting_for(trace))


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("perception_radius", -1, "perception_radius is -1; it should be a number at least 0"),
        ("perception_radius", nan, "perception_radius is nan; it should be a number at least 0"),
        ("max_velocity", -1, "max_velocity is -1; it should be a number at least 0"),
        ("joint_radius", -3, "joint_radius is -3; it should be 0 to 2, the perception radius"),
        ("joint_radius", 9, "joint_radius is 9; it should be 0 to 2, the perception radius"),
    ],
)
def test_a_setting_has_the_reach_of_a_trace(field: str, value: float, sentence: str) -> None:
    setting = setting_for(small_trace(7, agents=2, steps=3, edge=8, radius=2))
    with pytest.raises(MetropolisError) as error:
        replace(setting, **{field: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"the setting's {sentence}")


@pytest.mark.parametrize("mode", MODES)
def test_a_velocity_below_the_moves_is_refused(mode: str) -> None:
    trace = small_trace(7, agents=4, steps=9, edge=8, radius=2, velocity=2)
    sentence = r"the trace 'small 7', step 1, agent '.*': x, y jumps from .* max_velocity = 1$"
    with pytest.raises(MetropolisError, match=sentence):
        replay(trace, mode, replace(setting_for(trace), max_velocity=1))


@pytest.mark.parametrize("count", [0, -1, True, 65_537, 1.0])
def test_a_fleet_has_a_number_of_instances(count: Any) -> None:
    with pytest.raises(MetropolisError, match=r"count is .*; it should be a whole number from 1"):
        SimulatedFleet.uniform("llama-3-8b/l4", count)


def test_a_trace_without_dependencies_by_value_is_refused() -> None:
    trace = replace(small_trace(7, agents=2, steps=3, edge=8, radius=2), dependencies=None)
    with pytest.raises(MetropolisError, match="oracle_values needs a trace with dependencies by"):
        replay(trace, "oracle_values", setting_for(trace))


@given(small_traces)
@settings(max_examples=50, deadline=None)
def test_sequential_has_one_call_in_flight_in_order(trace: Trace) -> None:
    result = replay(trace, "sequential", setting_for(trace))
    order = np.argsort(result.sent_sim_s, kind="stable")
    assert (result.sent_sim_s[order[1:]] >= result.completed_sim_s[order[:-1]]).all()
    child = np.repeat(np.arange(len(trace.calls)), np.diff(trace.calls.parent_offsets))
    if (trace.calls.parents < child).all():
        assert (order == np.arange(len(order))).all()


@given(small_traces)
@settings(max_examples=50, deadline=None)
def test_lockstep_has_a_barrier_after_every_step(trace: Trace) -> None:
    result = replay(trace, "lockstep", setting_for(trace))
    committed = result.committed_sim_s.reshape(trace.steps, trace.agents)
    assert (committed.min(axis=1) == committed.max(axis=1)).all()


@given(
    small_traces,
    st.sampled_from(["step", "fcfs"]),
    st.sampled_from(SCHEDULED),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(list(ENGINE_RULES.values())),
)
@settings(max_examples=80, deadline=None)
def test_the_core_gives_the_commands_of_the_scheduler(
    trace: Trace, policy: str, mode: Mode, instances: int, alike: bool, rules: EngineRules
) -> None:
    """Every call goes to the same instance at the same time, for any number of instances.

    Calls that are `alike` complete at the same time on several instances.
    """
    calls = trace.calls
    if alike:
        lengths = np.full((2, len(calls)), 8, np.int32)
        calls = replace(calls, prompt_tokens=lengths[0], output_tokens=lengths[1])
    shared = replace(
        calls,
        prefix_id=calls.function.astype(np.int64) - 1,
        prefix_tokens=calls.prompt_tokens // 2 * (calls.function > 0),
    )
    setting = setting_for(trace, instances=instances, policy=policy)
    setting = replace(setting, fleet=setting.fleet.under(rules))
    native, scheduled = (
        replay(
            replace(trace, calls=shared),
            mode.name,
            replace(setting, prefix_reuse=True, dispatcher=dispatcher),
        )
        for dispatcher in (None, "least_used")
    )
    for column in (
        "instance",
        "sent_sim_s",
        "completed_sim_s",
        "dispatched_sim_s",
        "blocked_by",
        "cluster",
    ):
        assert (getattr(scheduled, column) == getattr(native, column)).all(), column
    assert scheduled.started_sim_s == pytest.approx(native.started_sim_s)
    assert scheduled.queueing_p99_sim_s == pytest.approx(native.queueing_p99_sim_s)
    assert (scheduled.committed_sim_s == native.committed_sim_s).all()
    assert scheduled.utilisation == pytest.approx(native.utilisation)


def test_a_call_that_began_from_the_cache_and_was_preempted_waited_as_long_in_the_core() -> None:
    """The prefill from the cache is shorter than the one of the whole prompt."""
    trace = small_trace(0, agents=8, steps=4, edge=4, radius=9.0)
    count = len(trace.calls)
    calls = replace(
        trace.calls,
        prompt_tokens=np.full(count, 1000, np.int32),
        output_tokens=np.full(count, 200, np.int32),
        prefix_id=np.zeros(count, np.int64),
        prefix_tokens=np.full(count, 900, np.int32),
    )
    setting = setting_for(trace, instances=1)
    (entry,) = setting.fleet.instances
    profile = copy(entry.profile)
    profile.kv_capacity_tokens = 1600
    fleet = replace(setting.fleet, instances=(replace(entry, profile=profile),))
    native, scheduled = (
        replay(
            replace(trace, calls=calls),
            "lockstep",
            replace(setting, fleet=fleet, prefix_reuse=True, dispatcher=dispatcher),
        )
        for dispatcher in (None, "least_used")
    )
    assert native.preemptions == scheduled.preemptions > 0
    assert native.started_sim_s == pytest.approx(scheduled.started_sim_s)
    assert (native.completed_sim_s == scheduled.completed_sim_s).all()


def test_faster_instances_beside_slow_ones_help() -> None:
    trace = small_trace(7, agents=6, steps=12, edge=8, radius=2)
    slow, mixed = (
        replay(trace, "versioned", replace(setting_for(trace), fleet=SimulatedFleet.parse(names)))
        for names in (["llama-3-8b/l4:2"], ["llama-3-8b/l4", "llama-3-8b/h100"])
    )
    assert (slow.fleet, slow.profile) == ("2 x llama-3-8b/l4", "llama-3-8b/l4")
    assert mixed.fleet == "1 x llama-3-8b/l4 + 1 x llama-3-8b/h100"
    assert (mixed.instances, mixed.profile) == (2, "llama-3-8b/l4,llama-3-8b/h100")
    assert mixed.makespan_sim_s < slow.makespan_sim_s


def test_the_bound_of_equal_instances_is_refused_for_others() -> None:
    trace = small_trace(7, agents=2, steps=3, edge=8, radius=2)
    with pytest.raises(MetropolisError, match="no_dependency is a bound for equal instances"):
        replay(trace, "no_dependency", replace(setting_for(trace), fleet=FLEETS[-1]))


def test_a_replay_is_deterministic() -> None:
    trace = small_trace(7, agents=6, steps=12, edge=8, radius=2)
    for mode in MODES:
        first, second = (replay(trace, mode, setting_for(trace)) for _ in range(2))
        assert (first.completed_sim_s == second.completed_sim_s).all()
        assert first.makespan_sim_s == second.makespan_sim_s


def test_agents_far_apart_do_not_wait_for_each_other() -> None:
    trace = small_trace(3, agents=2, steps=40, edge=1, radius=1)
    trace.positions[:, 1] += 1000
    setting = setting_for(trace, instances=20)  # calls never share one
    makespan = {m: replay(trace, m, setting).makespan_sim_s for m in MODES}
    assert makespan["conservative"] == pytest.approx(makespan["critical_path"])
    assert makespan["lockstep"] > 1.1 * makespan["conservative"]
