"""Simulated clusters that host the models of a pair, and what they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from metropolis.bench.droidspeak.paper import PAIRS, PaperPair
from metropolis.policy.fixed import Fcfs
from metropolis.policy.named import DISPATCHERS, named
from metropolis.reuse.base import CacheReuse
from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import NoReuse, PrefixReuse
from metropolis.reuse.plan import Plan
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import load_entry
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.generate.histories import BASE, CHAT, EXPERT
from metropolis.trace.programs import Program

REUSES = ("none", "prefix", "droidspeak")
LOSS = 0.03
"""Maximum loss of quality; the largest loss in Table 2 is 2.1 points."""
INSTRUCT, MATH = PAIRS[0], PAIRS[3]
SATURATED_PER_S = 1000.0
"""A rate of programs that no cluster here can serve."""
LINK_GBIT_PER_S = 200.0
"""DroidSpeak §6.1."""


def plan_for(pair: PaperPair, receiver: str) -> Plan:
    """The pair's plan between the models `base` and `receiver`."""
    return msgspec.structs.replace(pair.plan(), sender=BASE, receiver=receiver)


PLANS = (plan_for(INSTRUCT, CHAT), plan_for(MATH, EXPERT))
"""Two variants of Llama-3-8B."""


@dataclass(frozen=True)
class Cluster:
    """Instances of each model, and how they serve."""

    instances: Mapping[str, int]
    reuse: str
    plans: tuple[Plan, ...] = PLANS
    profile: str = INSTRUCT.profile
    dispatcher: str = "least_used"
    link_gbit_per_s: float = LINK_GBIT_PER_S
    overlapped: bool = True
    """Whether a prefill runs while the rest of its transfer arrives."""

    def choice(self) -> CacheChoice:
        """What chooses the caches of its prefills."""
        entry = replace(load_entry(self.profile), link_gb_per_s=self.link_gbit_per_s / 8)
        fleet = SimulatedFleet(
            tuple(
                replace(entry, name=f"{model}={self.profile}", model=model)
                for model, count in self.instances.items()
                for _ in range(count)
            )
        )
        reuses: dict[str, Callable[[], CacheReuse]] = {
            "none": NoReuse,
            "prefix": PrefixReuse,
            "droidspeak": lambda: DroidSpeak(self.plans, LOSS),
        }
        return CacheChoice(reuses[self.reuse](), fleet, overlapped=self.overlapped)


@dataclass(frozen=True)
class Served:
    """What a cluster served; simulated. TTFTs are those of calls of fine-tuned models."""

    programs_per_s: float
    """Completed programs per second, from the first arrival to the last answer."""
    program_mean_s: float
    ttft_mean_s: float
    ttft_p99_s: float
    reused_share: float
    """Share of all prompt tokens that came from another model's cache."""
    own_share: float
    """Share of all prompt tokens that were in the instance's own cache of the model."""
    moved_gb: float


def serve(programs: Sequence[Program], cluster: Cluster) -> Served:
    """Serve the programs, first come first served."""
    choice = cluster.choice()
    fleet = choice.fleet
    served = WorkloadSimulation(
        programs,
        fleet.profiles,
        Fcfs(),
        named(DISPATCHERS, cluster.dispatcher)(fleet.dispatcher_view()),
        PoolOptions(),
        choice=choice,
    ).run()
    ttft_s = [
        one.first_token_s - one.request.arrived_s
        for one in served.requests
        if one.request.model != BASE and one.first_token_s is not None
    ]
    took_s = [one.ended_sim_s - one.program.arrival_s for one in served.programs]
    prompt_tokens = sum(one.request.prompt_tokens for one in served.requests)
    first_s = min(one.arrival_s for one in programs)
    last_s = max(one.ended_sim_s for one in served.programs)
    return Served(
        len(programs) / (last_s - first_s),
        float(np.mean(took_s)),
        float(np.mean(ttft_s)),
        float(np.percentile(ttft_s, 99)),
        choice.counts.reused_tokens / prompt_tokens,
        choice.counts.own_tokens / prompt_tokens,
        choice.counts.moved_bytes / 1e9,
    )


def at_rate(programs: Sequence[Program], per_s: float) -> list[Program]:
    """Programs drawn at a rate of 1, at the rate `per_s`."""
    return [replace(each, arrival_s=each.arrival_s / per_s) for each in programs]


def saturated_per_s(programs: Sequence[Program], cluster: Cluster) -> float:
    """Programs per second that the cluster serves when they arrive much faster."""
    return serve(at_rate(programs, SATURATED_PER_S), cluster).programs_per_s


def most_per_s(
    programs: Sequence[Program], cluster: Cluster, ttft_s: float, high_per_s: float
) -> float:
    """The highest rate of programs, drawn at a rate of 1, with a mean TTFT of at most `ttft_s`.

    Bisected below `high_per_s` to a 512th of it; 0 if no rate is low enough.
    """
    low = 0.0
    for step in range(1, 10):
        middle = low + high_per_s / 2**step
        if serve(at_rate(programs, middle), cluster).ttft_mean_s <= ttft_s:
            low = middle
    return low
