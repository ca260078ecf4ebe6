"""Replay a trace on simulated LLM instances in one execution mode (AI Metropolis §4)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import metropolis._core as _core
from metropolis.controller.native import mined_controller, native_controller, value_controller
from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.names import check_name
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.faults import RequestRefusedError, call, rank_of
from metropolis.policy.named import DISPATCHERS, POLICIES, REUSES, named
from metropolis.rules.metrics import Metric, metric_named
from metropolis.rules.native import core_metric
from metropolis.rules.rules import versioned
from metropolis.runtime.replays.bounds import all_at_once, longest_chain
from metropolis.runtime.replays.checks import check_calls_fit, check_models, check_moves
from metropolis.runtime.replays.core_replay import replay_in_core
from metropolis.runtime.replays.measurements import Float64, Int32, Measurements, Progress
from metropolis.runtime.replays.modes import AUTO_RISK, MODES, Mode, Risk
from metropolis.runtime.replays.policy_replay import replay_with_plug_ins
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.fleet_schedule import FleetSchedule
from metropolis.trace.mining import InteractionGraph, interactions
from metropolis.trace.schema import Trace, TraceMeta
from metropolis.trace.validate import rounded_velocity, validate_reach
from metropolis.types import MetropolisError

_SETTING = ("hours", "agents", "fleet", "policy", "dispatcher", "metric")
"""The fields in which two comparable results agree."""
_CORE_POLICIES = ("step", "fcfs")
"""The policies of the C++ replay."""


@dataclass(frozen=True)
class Setting:
    """The parameters of a replay, beside the trace and the mode.

    Raises MetropolisError on a radius or velocity that no trace may have.
    """

    metric: Metric
    perception_radius: float
    max_velocity: float
    fleet: SimulatedFleet
    policy: str = "step"
    dispatcher: str | None = None
    """Name of the dispatcher; None: each call goes at once to the least used instance."""
    prefix_reuse: bool = False
    """Whether instances reuse the prefix that calls with equal `prefix_id` share. It applies only
    without `reuse`."""
    reuse: str | None = None
    """Name of the plug-in that chooses the cache of each prefill; None: no plug-in chooses. It
    needs instances that host a named model."""
    hours: str = "all"
    """The part of the day that the trace covers, as `--hours` names it."""
    joint_radius: float | None = None
    """The distance within which agents act together; None: the perception radius."""
    schedule: FleetSchedule | None = None
    """The times at which instances serve, for a schedule of `fleet`; None: all instances serve all
    the time."""
    speculation: Risk | None = AUTO_RISK
    """For `optimistic`: the risk up to which agents run ahead; None: no agent runs ahead."""

    def __post_init__(self) -> None:
        radii = self.perception_radius, self.max_velocity, self.joint_radius
        validate_reach("the setting's ", *radii)

    @classmethod
    def of(cls, meta: TraceMeta, fleet: SimulatedFleet, *, metric: str | None = None) -> Setting:
        """The setting of a trace on `fleet`; `metric` overrides the trace's.

        Raises MetropolisError if the metric is unknown.
        """
        return cls(
            metric=metric_named(metric or meta.metric, meta.map, meta.max_velocity, meta.graph),
            perception_radius=meta.perception_radius,
            max_velocity=meta.max_velocity,
            fleet=fleet,
            joint_radius=meta.joint_radius,
        )


@dataclass(frozen=True, eq=False)  # arrays are not equal or unequal as a whole
class ReplayResult:
    """Measurements of a replay. `sim_s` is virtual time; the arrays are indexed like the trace."""

    mode: str
    rule: str | None
    metric: str
    policy: str
    dispatcher: str | None
    fleet: str
    profile: str
    prefix_reuse: bool
    reuse: dict[str, Any] | None
    """Name and counts of the plug-in that chose caches; None: there was none."""
    hours: str
    instances: int
    agents: int
    steps: int
    calls: int
    makespan_sim_s: float
    achieved_parallelism: float
    """Mean number of outstanding calls."""
    utilisation: float | None
    """Mean busy share of the instances over the makespan; of the GPUs if the fleet changes. None
    for `critical_path`."""
    preemptions: int
    wasted_calls: int
    """Number of calls sent for wrong executions, in addition to `calls`; 0 unless `optimistic`."""
    queueing_mean_sim_s: float | None
    queueing_p50_sim_s: float | None
    queueing_p99_sim_s: float | None
    """Mean, median and 99th percentile of queueing: the time of a call from sending to its start on
    an instance, plus the time that it spent preempted. None for the bounds, and without calls."""
    controller_us_per_agent_step: float | None
    wall_s: float
    sent_sim_s: Float64
    started_sim_s: Float64
    """(calls,): start of each call, see `ServedRequest.started_s`; NaN for the bounds."""
    completed_sim_s: Float64
    """(calls,): completion of each call."""
    instance: Int32
    """(calls,): the instance that served each call; -1 for the bounds."""
    dispatched_sim_s: Float64
    committed_sim_s: Float64
    """(steps * agents,) both: dispatch and commit of each agent-step; empty for the bounds."""
    blocked_by: Int32
    """(steps * agents,): the agent that each agent-step waited for last before its dispatch; -1 if
    it did not wait; empty for the bounds."""
    cluster: Int32
    """(steps * agents,): the smallest agent of the cluster of each agent-step; empty for the
    bounds."""
    wasted: Int32
    """(steps * agents,): number of wrong executions of each agent-step; empty unless
    `optimistic`."""


def mine_dependencies(trace: Trace, setting: Setting) -> InteractionGraph:
    """The dependencies of `oracle` and `critical_path` under `setting`."""
    return interactions(trace, setting.metric, setting.perception_radius)


def replay(
    trace: Trace,
    mode: str,
    setting: Setting,
    graph: InteractionGraph | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Replay `trace` in `mode`, a key of `MODES`.

    `graph` is the result of `mine_dependencies`; None: mine the trace if `mode` needs it.
    """
    check_name("mode", mode, MODES)
    trace.check_filled()
    owner = f"the trace {trace.meta.name!r}"
    check_moves(trace, setting.metric.name, setting.max_velocity, owner)
    chosen = MODES[mode]
    _check_mode(chosen, trace, setting)
    choice = cache_choice(setting)
    if choice is not None:
        setting = replace(setting, fleet=choice.fleet)
    check_models(trace, setting.fleet)
    if setting.schedule is not None:
        setting.schedule.check_hosts(trace)
    plugins = None
    if not runs_in_core(setting):
        plugins = plug_ins(setting.policy, setting.dispatcher, setting.fleet.dispatcher_view())
    check_calls_fit(trace, setting.fleet)
    started_wall_s = time.perf_counter()
    if chosen.name == "critical_path":
        graph = graph or mine_dependencies(trace, setting)
        measured = longest_chain(trace, setting.fleet, graph, setting.prefix_reuse)
    elif chosen.name == "no_dependency":
        measured = all_at_once(trace, setting.fleet, setting.prefix_reuse)
    else:
        measured = _run(trace, chosen, setting, plugins, choice, graph, progress)
    if progress is not None and chosen.is_bound:
        progress(trace.steps * trace.agents)
    wall_s = time.perf_counter() - started_wall_s
    return _result(trace, chosen, setting, choice, measured, wall_s)


def _check_mode(mode: Mode, trace: Trace, setting: Setting) -> None:
    """Raise MetropolisError if the trace cannot be replayed in the mode with this setting."""
    risk = setting.speculation
    if risk is not None and not (0 <= risk.most <= 1 and risk.calls_half > 0):
        raise MetropolisError(
            f"speculation {risk}: most is a number from 0 to 1, calls_half a positive one"
        )
    if mode.is_optimistic and not runs_in_core(setting):
        raise MetropolisError(
            "optimistic needs equal instances, the policy step or fcfs, no dispatcher and no "
            f"reuse, not {setting.fleet}, {setting.policy}, {setting.dispatcher or 'none'} and "
            f"{setting.reuse or 'none'}; omit this mode"
        )
    if mode.is_bound and setting.reuse is not None:
        raise MetropolisError(f"{mode.name} is a bound without reuse of caches; omit this mode")
    if mode.needs_values and trace.dependencies is None:
        raise MetropolisError(
            f"{mode.name} needs a trace with dependencies by value (the column depends_on), which "
            "a run in memory records from its first step on; omit this mode"
        )


def _result(
    trace: Trace,
    mode: Mode,
    setting: Setting,
    choice: CacheChoice | None,
    measured: Measurements,
    wall_s: float,
) -> ReplayResult:
    duration = measured["completed_sim_s"] - measured["sent_sim_s"]
    makespan_sim_s = measured["makespan_sim_s"]
    return ReplayResult(
        mode=mode.name,
        rule=_rule_of(mode),
        metric=setting.metric.name,
        policy=setting.policy,
        dispatcher=setting.dispatcher,
        fleet=f"{setting.schedule or setting.fleet}",
        profile=setting.fleet.profile_names,
        prefix_reuse=setting.prefix_reuse,
        reuse={"name": setting.reuse, **choice.counts.as_row()} if choice else None,
        hours=setting.hours,
        instances=len(setting.fleet),
        agents=trace.agents,
        steps=trace.steps,
        calls=len(trace.calls),
        achieved_parallelism=float(duration.sum()) / makespan_sim_s if makespan_sim_s else 0.0,
        wall_s=wall_s,
        **_queueing(measured["started_sim_s"] - measured["sent_sim_s"]),
        **measured,
    )


def _rule_of(mode: Mode) -> str | None:
    """The name of the rule of out-of-order execution; None: the mode follows none."""
    if mode.is_optimistic:
        return "versioned"
    return mode.name if mode.name in ("conservative", "versioned") else None


def runs_in_core(setting: Setting) -> bool:
    """Whether the C++ replay has the fleet, policy, dispatcher and reuse of `setting`."""
    is_uniform = len(setting.fleet.kinds) == 1 and setting.schedule is None
    has_no_plug_in = setting.dispatcher is None and setting.reuse is None
    return is_uniform and has_no_plug_in and setting.policy in _CORE_POLICIES


def cache_choice(setting: Setting) -> CacheChoice | None:
    """What chooses the cache of a prefill in a replay with `setting`; None: nothing does.

    Raises MetropolisError if the name is unknown or does not fit the fleet.
    """
    if setting.reuse is None:
        return None
    return CacheChoice(named(REUSES, setting.reuse)(), setting.fleet)


def plug_ins(policy: str, dispatcher: str | None, fleet: Fleet) -> tuple[Policy, Dispatcher]:
    """The policy and dispatcher of a replay, by name; None: the least used instance.

    Raises MetropolisError if a name is unknown, or the policy needs properties of a call that
    replays lack.
    """
    make = named(POLICIES, policy)
    probed: Policy = make()
    probe = QueuedRequest(0, "agent-step", "call", 1, 0.0, 0.0)
    try:
        call(Policy.arrived, probed, probe)
        rank_of(probed, probe)
    except RequestRefusedError as error:
        raise MetropolisError(f"policy {policy!r} is not for replays: {error}") from error
    return make(), named(DISPATCHERS, "least_used" if dispatcher is None else dispatcher)(fleet)


def _run(
    trace: Trace,
    mode: Mode,
    setting: Setting,
    plugins: tuple[Policy, Dispatcher] | None,
    choice: CacheChoice | None,
    graph: InteractionGraph | None,
    progress: Progress | None,
) -> Measurements:
    velocity = rounded_velocity(trace.positions, setting.max_velocity)
    if mode.needs_values:
        assert trace.dependencies is not None
        controller = value_controller(trace.steps, trace.agents, trace.dependencies)
    elif mode.rule is None:
        mined = graph or mine_dependencies(trace, setting)
        controller = mined_controller(trace.steps, trace.agents, mined.offsets, mined.partners)
    else:
        controller = native_controller(
            mode.rule(setting.perception_radius, setting.max_velocity, setting.joint_radius),
            setting.metric,
            velocity,
            trace.positions[0],
            trace.steps,
        )
    if plugins is None:
        return replay_in_core(
            trace,
            controller,
            setting.fleet,
            prefix_reuse=setting.prefix_reuse,
            step_priority=setting.policy == "step",
            outstanding_max=mode.outstanding_max,
            optimism=_optimism(setting, velocity) if mode.is_optimistic else None,
            progress=progress,
        )
    return replay_with_plug_ins(
        trace,
        controller,
        setting.fleet,
        plugins,
        schedule=setting.schedule,
        prefix_reuse=setting.prefix_reuse,
        outstanding_max=mode.outstanding_max,
        choice=choice,
        progress=progress,
    )


def _optimism(setting: Setting, velocity: float) -> _core.Optimism:
    radii = setting.perception_radius, setting.max_velocity, setting.joint_radius
    risk = Risk(-1.0) if setting.speculation is None else setting.speculation
    return _core.Optimism(
        metric=core_metric(setting.metric),
        perception_radius=setting.perception_radius,
        max_velocity=velocity,
        cluster_radius=versioned(*radii).couple_radius,
        risk_max=risk.most,
        calls_half=risk.calls_half * len(setting.fleet),
    )


def _queueing(queueing_sim_s: Float64) -> dict[str, Any]:
    """Mean and percentiles of the calls' queueing, if it is known."""
    names = ("queueing_mean_sim_s", "queueing_p50_sim_s", "queueing_p99_sim_s")
    if not len(queueing_sim_s) or np.isnan(queueing_sim_s).any():
        return dict.fromkeys(names)
    values = queueing_sim_s.mean(), *np.percentile(queueing_sim_s, (50, 99))
    return dict(zip(names, map(float, values), strict=True))


def speedup(results: Sequence[ReplayResult], result: ReplayResult, reference: str) -> float | None:
    """Speedup over the `reference` mode under the same setting; None: that mode was not run."""
    for other in results:
        same = all(getattr(other, field) == getattr(result, field) for field in _SETTING)
        if same and other.mode == reference and result.makespan_sim_s > 0:
            return other.makespan_sim_s / result.makespan_sim_s
    return None


def waste(result: ReplayResult) -> float:
    """Share of the sent calls that were sent for wrong executions."""
    return result.wasted_calls / max(1, result.calls + result.wasted_calls)
