"""Runs of `metropolis bench serving`: replays by their makespan, programs by their latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metropolis.policy.named import DISPATCHERS, POLICIES, named
from metropolis.rules.metrics import metric_named
from metropolis.runtime.replay import Setting, replay
from metropolis.sim.fleet import busy_rate_per_s, fleet_of
from metropolis.sim.profiles import Profile
from metropolis.sim.serving import Serving
from metropolis.trace.generate import agentic, agentix
from metropolis.trace.programs import Program
from metropolis.trace.schema import Trace

MODE = "conservative"


@dataclass(frozen=True)
class Place:
    """What a trace is replayed on."""

    name: str
    agents: int
    instances: int


@dataclass(frozen=True)
class Replayed:
    """A cell of a table of makespans; all simulated."""

    place: Place
    calls: int
    policy: str
    dispatcher: str
    makespan_sim_s: float
    call_mean_sim_s: float
    """From when a call is sent to its answer."""
    preemptions: int


@dataclass(frozen=True)
class Mixed:
    """A cell of a table of latencies in ms per output token of a program; all simulated."""

    mix: str
    load: float
    programs: int
    instances: int
    policy: str
    dispatcher: str
    average_ms: float
    p99_ms: float
    preemptions: int


MIXES: dict[str, Callable[[int, float, int], list[Program]]] = {
    "Kairos' co-located": lambda count, per_s, seed: agentic.workload(
        agentic.CO_LOCATED, count, per_s, seed
    ),
    "Agentix' mixed": lambda count, per_s, seed: agentix.workload(
        agentix.MIXED, count, per_s, seed
    ),
}
"""(programs, a second, seed) -> what arrives."""


def setting_of(trace: Trace, place: Place, profile: str, engine: Profile) -> Setting:
    """What holds for all cells of a table."""
    meta = trace.meta
    return Setting(
        metric=metric_named(meta.metric, meta.map, meta.max_velocity, meta.graph),
        perception_radius=meta.perception_radius,
        max_velocity=meta.max_velocity,
        joint_radius=meta.joint_radius,
        profile=engine,
        profile_name=profile,
        instances=place.instances,
    )


def replayed(
    trace: Trace, place: Place, setting: Setting, policy: str, dispatcher: str
) -> Replayed:
    """A cell."""
    result = replay(trace, MODE, replace(setting, policy=policy, dispatcher=dispatcher))
    took_sim_s = result.completed_sim_s - result.sent_sim_s
    return Replayed(
        place,
        result.calls,
        policy,
        dispatcher,
        result.makespan_sim_s,
        float(took_sim_s.mean()),
        result.preemptions,
    )


def mixed(
    mix: str,
    load: float,
    programs: int,
    engine: Profile,
    instances: int,
    seed: int,
    pairs: Sequence[tuple[str, str]],
    advance: Callable[[int], Any],
) -> list[Mixed]:
    """The cells of a mix at `load` times the rate that keeps all memory in use, before the same
    arrivals.
    """
    fleet = fleet_of(engine, instances)
    per_s = load * busy_rate_per_s(MIXES[mix](500, 1.0, seed), fleet)
    arriving = MIXES[mix](programs, per_s, seed)
    cells = []
    for policy, dispatcher in pairs:
        place = named(DISPATCHERS, dispatcher)(fleet)
        served = Serving(arriving, engine, named(POLICIES, policy)(), place).run()
        latencies_ms = np.array([1000 * one.latency_s_per_token for one in served.programs])
        cells.append(
            Mixed(
                mix,
                load,
                programs,
                instances,
                policy,
                dispatcher,
                float(latencies_ms.mean()),
                float(np.percentile(latencies_ms, 99)),
                served.preemptions,
            )
        )
        advance(1)
    return cells
