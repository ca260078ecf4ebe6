"""Runs of `metropolis bench kairos`: every system with the same programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metropolis.bench.kairos.kept import kept
from metropolis.policy.base import Policy
from metropolis.policy.kairos.accuracy import ordering_accuracy
from metropolis.policy.kairos.latency import FIRST
from metropolis.policy.kairos.policy import Kairos
from metropolis.policy.named import DISPATCHERS, POLICIES, named
from metropolis.sim.fleet import SimulatedFleet, busy_rate_per_s
from metropolis.sim.options import PoolOptions
from metropolis.sim.workload_simulation import WorkloadResult, WorkloadSimulation
from metropolis.trace.generate.agentic import workload
from metropolis.trace.programs import Program

SYSTEMS = {
    "Parrot": ("fcfs", "round_robin"),
    "Ayo": ("topology", "round_robin"),
    "Kairos": ("kairos", "kairos"),
    "no priority": ("fcfs", "kairos"),
    "no packing": ("kairos", "round_robin"),
}
"""Policy and dispatcher (§7.1); the last two are ablations of Kairos (§7.6)."""
HISTORY_LOAD, REST_S = 0.5, 600.0
"""Programs served first, as a history, have this share of the rate that fills the fleet, so that
nothing queues; they end within this time after the last one has arrived."""
BEFORE = "before: "
"""Name prefix of the programs of the history."""
TAILS = (90, 95, 99)
SAMPLE = 500
"""Programs from which the rate that fills the fleet is estimated."""
NEAR, TRIES = 0.02, 10
"""A rate is sought until Parrot's queueing share is this near to the one asked for, or so often."""


@dataclass(frozen=True)
class Measured:
    """One system at one rate; latencies in ms per output token."""

    seed: int
    application: str
    load: float
    """Per cent of queueing under Parrot for which the rate was sought."""
    programs_per_s: float
    system: str
    average_ms: float
    tails_ms: dict[int, float]
    queueing_share: float
    """Mean over programs of the share of queueing in their time from arrival to end (§7.1)."""
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
    minutes: float
    """Time for which programs arrive."""
    history: int
    """Programs that precede them, unmeasured, so that Kairos knows its applications."""
    seed: int
    medians: tuple[tuple[str, int], ...] = ()
    """(function, median tokens of its answer) where it is not the estimate."""
    keep: Path | None = None
    """A folder that keeps the runs."""

    def measure(self, application: str, loads: Sequence[float]) -> Iterator[Measured]:
        """Yield every system with the same arrivals, for each load: see `Measured.load`.

        The paper scales the rate of its trace until queueing takes 0 to 90 % of the time (§7.1);
        which system's queueing is not said, here it is Parrot's.
        """
        parrot: dict[float, Measured] = {}
        for load in loads:
            goal = load / 100
            per_s = self.busy_per_s(application)
            for _ in range(TRIES):
                if per_s not in parrot:  # loads share the rates that were tried
                    parrot[per_s] = self.serve(application, "Parrot", per_s)
                shares = {rate: one.queueing_share for rate, one in parrot.items()}
                best = min(shares, key=lambda rate: abs(shares[rate] - goal))
                if abs(shares[best] - goal) <= NEAR:
                    break
                per_s = next_rate(shares, goal)
            for system in SYSTEMS:
                one = parrot[best] if system == "Parrot" else self.serve(application, system, best)
                yield replace(one, load=load)

    def busy_per_s(self, application: str) -> float:
        """Programs per second that fill the fleet, an estimate."""
        return busy_rate_per_s(self._programs(application, SAMPLE, 1.0, self.seed), self._fleet())

    def serve(self, application: str, system: str, per_s: float) -> Measured:
        """Measure one system at a rate, or take it from `keep`; `load` is not known yet, 0."""

        def run() -> Measured:
            return self._serve(application, system, per_s)

        settings = replace(self, keep=None), application, system, per_s
        return run() if self.keep is None else kept(self.keep, settings, run, Measured)

    def _serve(self, application: str, system: str, per_s: float) -> Measured:
        fleet = self._fleet()
        before = [
            replace(program, name=f"{BEFORE}{program.name}")
            for program in self._programs(
                application,
                self.history,
                HISTORY_LOAD * self.busy_per_s(application),
                self.seed + 1,
            )
        ]
        start_s = before[-1].arrival_s + REST_S if before else 0.0
        arriving = [
            replace(program, arrival_s=start_s + program.arrival_s)
            for program in self._programs(
                application, max(1, round(60 * self.minutes * per_s)), per_s, self.seed
            )
        ]
        policy_name, dispatcher_name = SYSTEMS[system]
        policy: Policy = named(POLICIES, policy_name)()
        dispatcher = named(DISPATCHERS, dispatcher_name)(fleet.dispatcher_view())
        served = WorkloadSimulation(
            before + arriving, fleet.profiles, policy, dispatcher, PoolOptions()
        ).run()
        return _summarize(self.seed, application, per_s, system, served, policy)

    def _programs(self, application: str, count: int, per_s: float, seed: int) -> list[Program]:
        return workload(application, count, per_s, seed, dict(self.medians))

    def _fleet(self) -> SimulatedFleet:
        fleet = SimulatedFleet.parse(self.instances)
        for entry in fleet.kinds:
            entry.profile.max_sequences = self.sequences
        return fleet


def next_rate(shares: dict[float, float], goal: float) -> float:
    """The rate to try next, given the shares of queueing at others."""
    below = max((rate for rate, share in shares.items() if share < goal), default=None)
    above = min((rate for rate, share in shares.items() if share >= goal), default=None)
    if below is None or above is None:
        return max(shares) * 1.3 if above is None else min(shares) / 1.3
    weight = (goal - shares[below]) / (shares[above] - shares[below])
    return below + min(max(weight, 0.1), 0.9) * (above - below)


def _summarize(
    seed: int, application: str, per_s: float, system: str, served: WorkloadResult, policy: Policy
) -> Measured:
    programs = [one for one in served.programs if not one.program.name.startswith(BEFORE)]
    served_requests = [e for e in served.requests if not e.request.program.startswith(BEFORE)]
    latencies_ms = np.array([1000 * one.latency_s_per_token for one in programs])
    shares = [one.queueing_sim_s / (one.ended_sim_s - one.program.arrival_s) for one in programs]
    return Measured(
        seed,
        application,
        0.0,
        per_s,
        system,
        float(latencies_ms.mean()),
        {tail: float(np.percentile(latencies_ms, tail)) for tail in TAILS},
        float(np.mean(shares)),
        served.preemptions,
        ordering_accuracy(served_requests, _informed(policy, served)),
    )


def _informed(policy: Policy, served: WorkloadResult) -> Policy:
    """Kairos with the order of the executions of the run, as in §7.4; others as they are.

    The order counts the executions up to the latest update of each function, at least half of all.
    """
    if not isinstance(policy, Kairos):
        return policy
    informed = Kairos(window=max(FIRST, len(served.requests)))
    for request in served.requests:
        informed.completed(request)
    for program in served.programs:
        informed.program_ended(program.program.name)
    return informed
