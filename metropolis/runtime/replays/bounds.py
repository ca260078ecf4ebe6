"""The bounds of a replay, computed from the trace: makespans that executions cannot beat.

`critical_path` holds for the modes that wait for the agents in sight; `optimistic` and
`oracle_values` need not.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

import metropolis._core as _core
from metropolis.runtime.replays.measurements import Float64, Measurements, utilisation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.mining import InteractionGraph, critical_path
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError


def isolated_sim_s(trace: Trace, fleet: SimulatedFleet, prefix_reuse: bool) -> Float64:
    """(calls,): time each call takes alone on an idle instance, the fastest with its model.

    With `prefix_reuse` the instance has the prefixes that several calls begin with.
    """
    calls = trace.calls
    cached = _cacheable_tokens(trace) if prefix_reuse else np.zeros(len(calls), np.int64)
    kinds, chunked = fleet.kinds, fleet.rules.chunked_prefill
    hosts = [
        [kind.profile for kind in kinds if kind.model in (None, model)] for model in calls.models
    ]
    columns = calls.model, calls.prompt_tokens, calls.output_tokens, cached
    return np.array(
        [
            min(
                _core.InstancePool.isolated_sim_s(
                    profile, _core.Request(prompt, output, reused_tokens=reused), chunked
                )
                for profile in hosts[model]
            )
            for model, prompt, output, reused in zip(*(of.tolist() for of in columns), strict=True)
        ],
        dtype=np.float64,
    )


def _cacheable_tokens(trace: Trace) -> npt.NDArray[np.int64]:
    """(calls,): the tokens of each prompt that may be cached; at least one is computed."""
    calls = trace.calls
    _, kind, count = np.unique(calls.prefix_id, return_inverse=True, return_counts=True)
    is_shared = (calls.prefix_id >= 0) & (count[kind] > 1)
    tokens = np.minimum(calls.prefix_tokens, calls.prompt_tokens - 1)
    return np.where(is_shared, tokens, 0).astype(np.int64)


def longest_chain(
    trace: Trace, fleet: SimulatedFleet, graph: InteractionGraph, prefix_reuse: bool
) -> Measurements:
    """Measurements of `critical_path`: the longest chain of dependencies, each call alone."""
    weight = isolated_sim_s(trace, fleet, prefix_reuse)
    path = critical_path(trace, graph, weight)
    sent = np.zeros(len(trace.calls))
    return _bound(path.weight, sent, sent + weight, busy=None, preemptions=0)


def all_at_once(trace: Trace, fleet: SimulatedFleet, prefix_reuse: bool) -> Measurements:
    """Measurements of `no_dependency`: all calls are sent at time 0.

    Raises MetropolisError if the instances differ.
    """
    calls = trace.calls
    if len(fleet.kinds) > 1:
        raise MetropolisError(
            f"no_dependency is a bound for equal instances, not for {fleet}; omit this mode"
        )
    sent = np.zeros(len(calls))
    simulated = _core.simulate(
        fleet.profiles[0],
        sent,
        calls.prompt_tokens,
        calls.output_tokens,
        prefix_id=calls.prefix_id,
        prefix_tokens=calls.prefix_tokens,
        instances=len(fleet),
        **asdict(fleet.pool_options(prefix_reuse)),
    )
    completed = simulated["last_token_sim_s"]
    makespan_sim_s = float(completed.max(initial=0.0))
    busy = utilisation(simulated["busy_sim_s"], len(fleet), makespan_sim_s)
    return _bound(makespan_sim_s, sent, completed, busy, simulated["preemptions"])


def _bound(
    makespan_sim_s: float,
    sent: Float64,
    completed: Float64,
    busy: float | None,
    preemptions: int,
) -> Measurements:
    """The measurements of a bound, which has no controller and commits nothing."""
    return {
        "makespan_sim_s": makespan_sim_s,
        "utilisation": busy,
        "preemptions": preemptions,
        "wasted_calls": 0,
        "controller_us_per_agent_step": None,
        "sent_sim_s": sent,
        "started_sim_s": np.full(len(sent), np.nan),
        "completed_sim_s": completed,
        "instance": np.full(len(sent), -1, np.int32),
        "dispatched_sim_s": np.zeros(0),
        "committed_sim_s": np.zeros(0),
        "blocked_by": np.zeros(0, np.int32),
        "cluster": np.zeros(0, np.int32),
        "wasted": np.zeros(0, np.int32),
    }
