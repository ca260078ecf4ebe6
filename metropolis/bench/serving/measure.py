"""Runs of `metropolis bench serving`: makespans of replays, latencies of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metropolis.policy.named import DISPATCHERS, POLICIES, named
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet, busy_rate_per_s
from metropolis.sim.options import PoolOptions
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.generate import agentic, agentix
from metropolis.trace.programs import Program
from metropolis.trace.schema import Trace

MODE = "conservative"


@dataclass(frozen=True)
class Place:
    """A workload and its instances."""

    name: str
    agents: int
    instances: int


@dataclass(frozen=True)
class Replayed:
    """A cell of a table of makespans; all simulated."""

    place: Place
    fleet: str
    calls: int
    policy: str
    dispatcher: str
    makespan_sim_s: float
    call_mean_sim_s: float
    """Mean time from sending a call to its answer."""
    preemptions: int


@dataclass(frozen=True)
class Mixed:
    """A cell of a table of latencies in ms per output token of a program; all simulated."""

    mix: str
    load: float
    programs: int
    instances: int
    fleet: str
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
"""(programs, programs per second, seed) -> arriving programs."""


@dataclass(frozen=True)
class Bench:
    """Settings that all cells share."""

    fleet: SimulatedFleet
    prefix_reuse: bool
    seed: int

    def replayed(self, trace: Trace, place: Place, policy: str, dispatcher: str) -> Replayed:
        """Replay a trace for one cell."""
        setting = replace(
            Setting.of(trace.meta, self.fleet.of_size(place.instances)),
            policy=policy,
            dispatcher=dispatcher,
            prefix_reuse=self.prefix_reuse,
        )
        result = replay(trace, MODE, setting)
        took_sim_s = result.completed_sim_s - result.sent_sim_s
        return Replayed(
            place,
            result.fleet,
            result.calls,
            policy,
            dispatcher,
            result.makespan_sim_s,
            float(took_sim_s.mean()),
            result.preemptions,
        )

    def arriving(self, mix: str, programs: int, load: float) -> list[Program]:
        """Generate programs at `load` times the rate that fills the fleet."""
        per_s = load * busy_rate_per_s(MIXES[mix](500, 1.0, self.seed), self.fleet)
        return MIXES[mix](programs, per_s, self.seed)

    def mixed(
        self, mix: str, load: float, arriving: Sequence[Program], policy: str, dispatcher: str
    ) -> Mixed:
        """Serve a mix for one cell."""
        served = WorkloadSimulation(
            arriving,
            self.fleet.profiles,
            named(POLICIES, policy)(),
            named(DISPATCHERS, dispatcher)(self.fleet.dispatcher_view()),
            PoolOptions(self.prefix_reuse),
        ).run()
        latencies_ms = np.array([1000 * one.latency_s_per_token for one in served.programs])
        return Mixed(
            mix,
            load,
            len(arriving),
            len(self.fleet),
            f"{self.fleet}",
            policy,
            dispatcher,
            float(latencies_ms.mean()),
            float(np.percentile(latencies_ms, 99)),
            served.preemptions,
        )
