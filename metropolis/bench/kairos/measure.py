"""Runs of `metropolis bench kairos`: every system with the same programs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metropolis.policy.base import Policy
from metropolis.policy.kairos.accuracy import ordering_accuracy
from metropolis.policy.named import DISPATCHERS, POLICIES, named
from metropolis.sim.fleet import SimulatedFleet, busy_rate_per_s
from metropolis.sim.options import PoolOptions
from metropolis.sim.workload_simulation import WorkloadResult, WorkloadSimulation
from metropolis.trace.generate.agentic import APPLICATIONS, CO_LOCATED, workload

SYSTEMS = {
    "Parrot": ("fcfs", "round_robin"),
    "Ayo": ("topology", "round_robin"),
    "Kairos": ("kairos", "kairos"),
    "no priority": ("fcfs", "kairos"),
    "no packing": ("kairos", "round_robin"),
}
"""Policy and dispatcher (§7.1); the last two are ablations of Kairos (§7.6)."""
HISTORY_LOAD = 0.5
"""Load of the programs served first, as a history: nothing queues."""
BEFORE = "before: "
"""Name prefix of the programs of the history."""
TAILS = (90, 95, 99)
SAMPLE = 500
"""Programs from which the rate that fills the fleet is estimated."""


@dataclass(frozen=True)
class Measured:
    """One system under one load; latencies in ms per output token."""

    seed: int
    application: str
    load: float
    programs_per_s: float
    system: str
    average_ms: float
    tails_ms: dict[int, float]
    queueing_share: float
    """Share of queueing in the time from arrival to answer of all the run's calls together."""
    preemptions: int
    """Includes those of the history."""
    accuracy: float

    def latency_ms(self, which: str) -> float:
        """`average`, or a tail like `P90`."""
        return self.average_ms if which == "average" else self.tails_ms[int(which[1:])]


@dataclass(frozen=True)
class Bench:
    """Settings that all runs of a seed share."""

    instances: tuple[str, ...]
    """See `SimulatedFleet.parse`."""
    sequences: int
    """Maximum sequences that an instance decodes at once."""
    programs: int
    """Of an application; co-located, as many of each."""
    history: int
    """Programs that precede them, unmeasured: the paper's Kairos knows its applications."""
    seed: int

    def measure(self, application: str, load: float) -> list[Measured]:
        """Measure every system with the same arrivals, at `load` times the rate that fills all."""
        fleet = SimulatedFleet.parse(self.instances)
        for entry in fleet.instances:
            entry.profile.max_sequences = self.sequences
        sample = workload(application, SAMPLE, 1.0, self.seed)
        busy_per_s = busy_rate_per_s(sample, fleet)
        before = [
            replace(program, name=f"{BEFORE}{program.name}")
            for program in workload(
                application, self.history, HISTORY_LOAD * busy_per_s, self.seed + 1
            )
        ]
        start_s = before[-1].arrival_s if before else 0.0
        count = self.programs * (len(APPLICATIONS) if application == CO_LOCATED else 1)
        per_s = load * busy_per_s
        arriving = [
            replace(program, arrival_s=start_s + program.arrival_s)
            for program in workload(application, count, per_s, self.seed)
        ]
        measured = []
        for system, (policy_name, dispatcher_name) in SYSTEMS.items():
            policy: Policy = named(POLICIES, policy_name)()
            dispatcher = named(DISPATCHERS, dispatcher_name)(fleet.dispatcher_view())
            serving = WorkloadSimulation(
                before + arriving, fleet.profiles, policy, dispatcher, PoolOptions()
            )
            measured.append(
                _summarize(self.seed, application, load, per_s, system, serving.run(), policy)
            )
        return measured


def _summarize(
    seed: int,
    application: str,
    load: float,
    per_s: float,
    system: str,
    served: WorkloadResult,
    policy: Policy,
) -> Measured:
    programs = [one for one in served.programs if not one.program.name.startswith(BEFORE)]
    served_requests = [e for e in served.requests if not e.request.program.startswith(BEFORE)]
    latencies_ms = np.array([1000 * one.latency_s_per_token for one in programs])
    queueing_s = sum(e.started_s - e.request.arrived_s for e in served_requests)
    whole_s = sum(e.completed_s - e.request.arrived_s for e in served_requests)
    return Measured(
        seed,
        application,
        load,
        per_s,
        system,
        float(latencies_ms.mean()),
        {tail: float(np.percentile(latencies_ms, tail)) for tail in TAILS},
        queueing_s / whole_s,
        served.preemptions,
        ordering_accuracy(served_requests, policy),
    )
