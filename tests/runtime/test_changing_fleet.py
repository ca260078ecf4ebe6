"""A fleet that changes during a replay changes times alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.model_choice import ModelChoice
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet_schedule import FleetPhase, FleetSchedule
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from tests.runtime.test_replay import BY_POSITION, SERVED, assert_causal
from tests.sim.fleet_schedules import FLEET, SIZES, random_schedule
from tests.small_traces import small_trace, small_traces

CHOICE = ModelChoice.parse(["plan=a", "converse=b"])


def setting_on(trace: Trace, schedule: FleetSchedule) -> Setting:
    return replace(Setting.of(trace.meta, schedule.fleet), schedule=schedule)


@given(small_traces, st.integers(0, 1 << 30), st.sampled_from(SERVED), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_mode_keeps_the_history(
    trace: Trace, seed: int, served: tuple[str, str | None], prefix_reuse: bool
) -> None:
    """All steps and calls, each once, after all that they depend on, on their own models."""
    policy, dispatcher = served
    trace = CHOICE.applied_to(trace)
    schedule = random_schedule(seed, trace.steps)
    setting = replace(
        setting_on(trace, schedule),
        policy=policy,
        dispatcher=dispatcher,
        prefix_reuse=prefix_reuse,
    )
    for mode in BY_POSITION:
        result = replay(trace, mode.name, setting)
        assert_causal(trace, setting, result)
        assert 0 <= (result.utilisation or 0) <= 1 + 1e-9
        for call, instance in enumerate(result.instance.tolist()):
            assert FLEET.instances[instance].model == trace.calls.models[trace.calls.model[call]]


@given(small_traces, st.sampled_from(SERVED))
@settings(max_examples=15, deadline=None)
def test_a_schedule_of_one_phase_is_a_fleet(trace: Trace, served: tuple[str, str | None]) -> None:
    policy, dispatcher = served
    trace = CHOICE.applied_to(trace)
    ends = accumulate(SIZES)
    gpus = {i: tuple(range(end - SIZES[i], end)) for i, end in enumerate(ends)}
    phase = FleetPhase(0, gpus)
    schedule = FleetSchedule(FLEET, (1.0,) * len(FLEET), (phase,))
    setting = replace(setting_on(trace, schedule), policy=policy, dispatcher=dispatcher)
    ours = replay(trace, "versioned", setting)
    theirs = replay(trace, "versioned", replace(setting, schedule=None))
    assert (ours.completed_sim_s == theirs.completed_sim_s).all()
    assert (ours.instance == theirs.instance).all()


def one_agent(steps: int) -> Trace:
    """An agent that asks `a` once in each step."""
    trace = small_trace(0, agents=1, steps=steps, edge=3, radius=1)
    count = np.arange(steps)
    none = np.zeros(steps, np.int32)
    calls = replace(
        trace.calls, step=count.astype(np.int32), agent=none, function=none, model=none,
        models=("a",), prompt_tokens=none + 100, output_tokens=none + 10,
        prefix_id=none.astype(np.int64) - 1, prefix_tokens=none,
        parent_offsets=np.zeros(steps + 1, np.int64), parents=np.zeros(0, np.int64),
    )  # fmt: skip
    return replace(trace, calls=calls)


def test_calls_wait_until_their_model_has_loaded() -> None:
    trace = one_agent(6)
    phases = FleetPhase(0, {0: (0,)}), FleetPhase(3, {1: (0,)})
    schedule = FleetSchedule(FLEET, (7.0,) * len(FLEET), phases)
    setting = setting_on(trace, schedule)
    changing = replay(trace, "versioned", setting)
    still = replay(
        trace, "versioned", replace(setting, schedule=replace(schedule, phases=phases[:1]))
    )
    assert changing.instance.tolist() == [0, 0, 0, 1, 1, 1]
    assert changing.makespan_sim_s == pytest.approx(still.makespan_sim_s + 7)


def test_calls_that_wait_in_an_engine_move_to_one_that_comes_up() -> None:
    """One long batch waits for the memory of instance 0 until instance 1 has loaded."""
    trace = one_agent(2)
    many = 60
    calls = trace.calls
    full = np.concatenate([[0], np.full(many, 1)]).astype(np.int32)
    none = np.zeros(many + 1, np.int32)
    trace = replace(
        trace,
        calls=replace(
            calls, step=full, agent=none, function=none, model=none,
            prompt_tokens=none + 8000, output_tokens=none + 500,
            prefix_id=none.astype(np.int64) - 1, prefix_tokens=none,
            parent_offsets=np.zeros(many + 2, np.int64),
        ),
    )  # fmt: skip
    phases = FleetPhase(0, {0: (0,)}), FleetPhase(1, {0: (0,), 1: (1,)})
    schedule = FleetSchedule(FLEET, (2.0,) * len(FLEET), phases)
    setting = setting_on(trace, schedule)
    result = replay(trace, "versioned", setting)
    share = np.bincount(result.instance[1:]) / many
    assert (share > 0.3).all()
    alone = replay(
        trace, "versioned", replace(setting, schedule=replace(schedule, phases=phases[:1]))
    )
    assert result.makespan_sim_s < 0.7 * alone.makespan_sim_s


def test_calls_that_wait_in_an_engine_that_drains_move_to_another() -> None:
    """An agent that is ahead has sent a long batch when the slower one reaches the next phase."""
    many = 60
    trace = small_trace(0, agents=2, steps=2, edge=3, radius=1)
    positions = np.zeros_like(trace.positions)
    positions[:, 1] = 100
    step = np.concatenate([[0], np.ones(many)]).astype(np.int32)
    none = np.zeros(many + 1, np.int32)
    output = none + 500
    output[0] = 20
    calls = replace(
        trace.calls, step=step, agent=step, function=none, model=none, models=("a",),
        prompt_tokens=none + 8000, output_tokens=output,
        prefix_id=none.astype(np.int64) - 1, prefix_tokens=none,
        parent_offsets=np.zeros(many + 2, np.int64), parents=np.zeros(0, np.int64),
    )  # fmt: skip
    trace = replace(trace, positions=positions, calls=calls)
    phases = FleetPhase(0, {0: (0,)}), FleetPhase(1, {1: (0,)})
    result = replay(
        trace, "versioned", setting_on(trace, FleetSchedule(FLEET, (0.0,) * len(FLEET), phases))
    )
    served = result.instance[1:]
    assert (result.sent_sim_s[1:] < result.completed_sim_s[0]).all()
    assert 0 < np.count_nonzero(served == 0) < 30
    assert np.count_nonzero(served == 1) > 30


def test_a_model_that_loads_again_has_an_empty_cache_and_its_work_still_counts() -> None:
    trace = one_agent(3)
    shared = np.zeros(3, np.int32) + 96
    calls = replace(trace.calls, prefix_id=np.zeros(3, np.int64), prefix_tokens=shared)
    trace = replace(trace, calls=calls)
    phases = tuple(FleetPhase(step, {step % 2: (0,)}) for step in range(3))
    setting = setting_on(trace, FleetSchedule(FLEET, (5.0,) * len(FLEET), phases))
    result = replay(trace, "versioned", replace(setting, prefix_reuse=True))
    assert result.instance.tolist() == [0, 1, 0]
    seconds = result.completed_sim_s - result.started_sim_s
    assert seconds[2] == pytest.approx(seconds[0])
    assert result.makespan_sim_s == pytest.approx(seconds.sum() + 10)
    assert result.utilisation == pytest.approx(seconds.sum() / result.makespan_sim_s)


def test_a_phase_without_a_model_that_its_steps_ask_is_refused() -> None:
    trace = one_agent(6)
    phases = FleetPhase(0, {0: (0,)}), FleetPhase(2, {4: (0,)})
    schedule = FleetSchedule(FLEET, (0.0,) * len(FLEET), phases)
    with pytest.raises(MetropolisError, match=r"phase 2, steps 2 to 5: no instance hosts .* 'a'"):
        replay(trace, "versioned", setting_on(trace, schedule))
