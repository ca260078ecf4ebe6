"""Runs of the Agentix benchmark: loads, latencies and throughput at equal latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

import numpy as np

from metropolis.bench.agentix.systems import System
from metropolis.policy.named import DISPATCHERS, POLICIES, named
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.options import Preemption
from metropolis.sim.workload_simulation import WorkloadResult, WorkloadSimulation
from metropolis.trace.generate.agentix import workload

SINGLE_THREADED = ("ShareGPT", "BFCL")
TAILS = (95, 99)


@dataclass(frozen=True)
class Measured:
    """One system under one load; latencies in ms per output token of a program."""

    seed: int
    workload: str
    system: str
    dispatcher: str
    instances: int
    programs_per_s: float
    """Infinite: all arrive at once."""
    average_ms: float
    """Mean over the programs: the metric of the paper (§6.2)."""
    pooled_ms: float
    """All response times over all tokens, which is proportional to the mean completion time; the
    paper says that of its metric, too."""
    tails_ms: dict[int, float]
    preemptions: int
    makespan_sim_s: float


@dataclass(frozen=True)
class Bench:
    """Settings that all runs share."""

    profile: str
    sequences: int
    """Maximum sequences an instance decodes at once."""
    programs: int
    """Number of chats; programs with more calls are fewer, see `count`."""
    seed: int
    preemption: Preemption
    """How the systems that preempt by swap copy."""

    def count(self, name: str) -> int:
        """Return the number of programs of a workload that take about as long as the chats."""
        share = {"LATS": 0.1, "mixed": 0.3}.get(name, 1.0)
        return max(1, round(share * self.programs))

    def run(
        self, name: str, system: System, per_s: float, instances: int = 1, shares: int = 1
    ) -> Measured:
        """Serve `shares` times one instance's programs of workload `name`.

        They arrive at `per_s` per second, or all at once.
        """
        arriving = workload(name, shares * self.count(name), min(per_s, 1e9), self.seed)
        policy = system.policy or ("plas" if name in SINGLE_THREADED else "atlas")
        instance = system.instance(self.profile, self.sequences)
        fleet = SimulatedFleet((instance,) * instances)
        pool = system.pool
        if system.swaps:
            pool = replace(pool, preemption=self.preemption)
        served = WorkloadSimulation(
            arriving,
            fleet.profiles,
            named(POLICIES, policy + system.options)(),
            named(DISPATCHERS, system.dispatcher)(fleet.dispatcher_view()),
            pool,
        ).run()
        return _summarize(self.seed, name, system, instances, per_s, served, arriving[0].arrival_s)

    def busy_per_s(self, name: str, system: System) -> float:
        """Return the programs per second that keep the full batch of one instance busy.

        With prefix reuse, each text is prefilled once per program and system prompts never.
        """
        engine = system.instance(self.profile, self.sequences).profile
        batch = self.sequences
        iteration_ms = max(engine.w_ms, engine.g_ms * batch + engine.h_ms)
        iteration_ms += (engine.d_ms + engine.e_ms * batch) / system.pool.decision_iterations
        sample, busy_ms = workload(name, self.count(name), 1.0, self.seed), 0.0
        for program in sample:
            seen: set[int | None] = set()
            for call in program.calls:
                new = [tokens for text, tokens in call.prefix if text not in seen]
                if system.pool.prefix_reuse:
                    seen |= {text for text, _ in call.prefix} | {call.answer_text}
                context = call.prompt_tokens + call.output_tokens / 2
                token_ms = iteration_ms / batch + engine.b_ms + engine.k_ms * context
                busy_ms += engine.g_ms * sum(new) + engine.c_ms + call.output_tokens * token_ms
        return 1000 * len(sample) / busy_ms


def _summarize(
    seed: int,
    name: str,
    system: System,
    instances: int,
    per_s: float,
    served: WorkloadResult,
    start_sim_s: float,
) -> Measured:
    latencies_ms = np.array([1000 * one.latency_s_per_token for one in served.programs])
    tokens = np.array([one.program.output_tokens for one in served.programs])
    return Measured(
        seed,
        name,
        system.name,
        system.dispatcher,
        instances,
        per_s,
        float(latencies_ms.mean()),
        float(latencies_ms @ tokens / tokens.sum()),
        {tail: float(np.percentile(latencies_ms, tail)) for tail in TAILS},
        served.preemptions,
        max(one.ended_sim_s for one in served.programs) - start_sim_s,
    )


@dataclass(frozen=True)
class Throughput:
    """Programs per second; `is_lower_bound`: the true one is beyond the measured rates."""

    per_s: float
    is_lower_bound: bool = False


def throughput_at(curve: Sequence[Measured], latency_ms: float) -> Throughput:
    """Return the highest rate whose average is within `latency_ms`, log-linear between loads.

    0 if no measured load is within it.
    """
    ordered = sorted(curve, key=lambda one: one.programs_per_s)
    if ordered[0].average_ms > latency_ms:
        return Throughput(0.0)
    for below, above in pairwise(ordered):
        if above.average_ms > latency_ms:
            part = log(latency_ms / below.average_ms) / log(above.average_ms / below.average_ms)
            more_per_s = above.programs_per_s - below.programs_per_s
            return Throughput(below.programs_per_s + part * more_per_s)
    last = ordered[-1]
    return Throughput(last.programs_per_s, is_lower_bound=last.average_ms < latency_ms)
