"""A replay in C++, on equal instances."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

import metropolis._core as _core
from metropolis.runtime.replays.measurements import Measurements, Progress, utilisation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.schema import Trace

_AGENT_STEPS_PER_SLICE = 20_000


def replay_in_core(
    trace: Trace,
    controller: _core.Controller,
    fleet: SimulatedFleet,
    *,
    prefix_reuse: bool,
    step_priority: bool,
    outstanding_max: int,
    optimism: _core.Optimism | None,
    progress: Progress | None,
) -> Measurements:
    """Replay `trace` in the C++ core; return the measurements."""
    options, profile = fleet.pool_options(prefix_reuse), fleet.profiles[0]
    pool = _core.InstancePool(profile, len(fleet), **asdict(options))
    calls, values, none = trace.calls, trace.dependencies, np.zeros(0, np.int32)
    replaying = _core.Replay(
        positions=trace.positions,
        call_offsets=trace.call_offsets(),
        call_step=calls.step,
        call_agent=calls.agent,
        parent_offsets=calls.parent_offsets,
        parents=calls.parents,
        prompt_tokens=calls.prompt_tokens,
        output_tokens=calls.output_tokens,
        prefix_id=calls.prefix_id,
        prefix_tokens=calls.prefix_tokens,
        value_offsets=np.zeros(0, np.int64) if values is None else values.offsets,
        value_writers=none if values is None else values.writer,
        value_ago=none if values is None else values.ago,
        controller=controller,
        instances=pool,
        step_priority=step_priority,
        max_outstanding=outstanding_max,
        optimism=optimism,
    )
    finished, committed = False, 0
    while not finished:
        finished = replaying.run(_AGENT_STEPS_PER_SLICE)
        if progress is not None:
            progress(replaying.committed_agent_steps - committed)
        committed = replaying.committed_agent_steps
    sent_sim_s = replaying.sent_sim_s()
    prompts, prompt_of = np.unique(calls.prompt_tokens, return_inverse=True)
    requests = [_core.Request(prompt, 1) for prompt in prompts.tolist()]
    prefill_s = [
        _core.InstancePool.isolated_sim_s(profile, each, options.chunked_prefill)
        for each in requests
    ]
    started_sim_s = replaying.first_token_sim_s() - np.array(prefill_s, np.float64)[prompt_of]
    started_sim_s = np.maximum(sent_sim_s, started_sim_s) + replaying.preempted_sim_s()
    busy_sim_s = sum(pool.busy_sim_s(instance) for instance in range(len(fleet)))
    return {
        "makespan_sim_s": replaying.makespan_sim_s,
        "utilisation": utilisation(busy_sim_s, len(fleet), replaying.makespan_sim_s),
        "preemptions": pool.preemptions(),
        "wasted_calls": replaying.sent_calls - len(calls),
        "controller_us_per_agent_step": replaying.controller_wall_s / committed * 1e6,
        "sent_sim_s": sent_sim_s,
        "started_sim_s": started_sim_s,
        "completed_sim_s": replaying.completed_sim_s(),
        "instance": replaying.instance(),
        "dispatched_sim_s": replaying.dispatched_sim_s(),
        "committed_sim_s": replaying.committed_sim_s(),
        "blocked_by": replaying.blocked_by(),
        "cluster": replaying.cluster(),
        "wasted": replaying.wasted(),
    }
