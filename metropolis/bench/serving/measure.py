"""Runs of `metropolis bench serving`: replays and live runs of societies, latencies of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.policy.named import DISPATCHERS, POLICIES, REUSES, named
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.modes import OUT_OF_ORDER
from metropolis.runtime.replays.replay import Setting, plug_ins, replay
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.fleet import SimulatedFleet, busy_rate_per_s
from metropolis.sim.options import PoolOptions
from metropolis.sim.virtual import VirtualInstances
from metropolis.sim.workload_simulation import WorkloadSimulation
from metropolis.trace.generate import agentic, agentix
from metropolis.trace.generate.largeville import Hours, generate
from metropolis.trace.programs import Program
from metropolis.trace.schema import Trace
from metropolis.world.scenario import make_scenario

LIVE_MODE: Literal["out_of_order"] = "out_of_order"
MODE = OUT_OF_ORDER[LIVE_MODE]
QUARTER = (12.0, 12.25)
"""The first quarter of the busy hour."""


@dataclass(frozen=True)
class Place:
    """A society and its instances."""

    name: str
    agents: int
    instances: int
    sequences: int | None = None
    """Maximum sequences that an instance decodes at once; None: that of its profile."""
    hours: Hours = QUARTER
    """The stretch of a generated trace that is replayed."""
    live_steps: int = 0
    """Instead of a replay: the steps of a live run, which begins at 6:00."""


@dataclass(frozen=True)
class Society:
    """A cell of a table of makespans; all simulated."""

    seed: int
    place: Place
    fleet: str
    calls: int
    policy: str
    dispatcher: str
    makespan_sim_s: float
    call_mean_sim_s: float
    """Mean time from sending a call to its answer."""
    queueing_mean_sim_s: float
    """Mean time of it in which the call did not run on an instance."""


@dataclass(frozen=True)
class Mixed:
    """A cell of a table of latencies in ms per output token of a program; all simulated."""

    seed: int
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

    def replayed(self, trace: Trace, place: Place, policy: str, dispatcher: str) -> Society:
        """Replay a trace for one cell."""
        setting = replace(
            Setting.of(trace.meta, self.fleet_of(place)),
            policy=policy,
            dispatcher=dispatcher,
            prefix_reuse=self.prefix_reuse,
        )
        result = replay(trace, MODE, setting)
        took_sim_s = result.completed_sim_s - result.sent_sim_s
        assert result.queueing_mean_sim_s is not None
        return Society(
            self.seed,
            place,
            result.fleet,
            result.calls,
            policy,
            dispatcher,
            result.makespan_sim_s,
            float(took_sim_s.mean()),
            result.queueing_mean_sim_s,
        )

    def trace(self, place: Place) -> Trace:
        """The trace of `place`."""
        return generate(place.agents, place.hours, self.seed)

    def live(self, place: Place, policy: str, dispatcher: str) -> Society:
        """Run a world of the package with its offline author for one cell."""
        scenario = make_scenario(place.name.lower(), agents=place.agents, seed=self.seed)
        fleet, choice = self.fleet_of(place), None
        if self.prefix_reuse:
            choice = CacheChoice(named(REUSES, "prefix")(), fleet)
            fleet = choice.fleet
        backend = _TimedInstances(
            Scripted(scenario.world.author), fleet, policy, dispatcher, choice
        )
        client = Client(backend, timeout_s=inf)
        simulation = Simulation(
            scenario.world, scenario.agents, client, mode=LIVE_MODE, seed=self.seed
        )
        result = simulation.run(place.live_steps)
        return Society(
            self.seed,
            place,
            f"{self.fleet_of(place)}",
            result.calls,
            policy,
            dispatcher,
            result.makespan_s,
            float(np.mean(backend.took_sim_s)),
            float(np.mean(backend.queueing_sim_s)),
        )

    def fleet_of(self, place: Place) -> SimulatedFleet:
        """The instances of `place`."""
        fleet = self.fleet.of_size(place.instances)
        if place.sequences is None:
            return fleet
        narrow = []
        for entry in fleet.instances:
            profile = copy(entry.profile)
            profile.max_sequences = place.sequences
            narrow.append(replace(entry, profile=profile))
        return SimulatedFleet(tuple(narrow))

    def arriving(self, mix: str, programs: int, load: float) -> list[Program]:
        """Generate programs at `load` times the rate that fills the fleet.

        Programs with a call that exceeds the memory of an instance are left out.
        """
        per_s = load * busy_rate_per_s(MIXES[mix](500, 1.0, self.seed), self.fleet)
        capacity_tokens = min(each.kv_capacity_tokens for each in self.fleet.profiles)
        return [
            program
            for program in MIXES[mix](programs, per_s, self.seed)
            if max(call.prompt_tokens + call.output_tokens for call in program.calls)
            <= capacity_tokens
        ]

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
            self.seed,
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


class _TimedInstances(VirtualInstances):
    """Simulated instances that keep how long each call took, and how long it did not run."""

    def __init__(
        self,
        author: Scripted,
        fleet: SimulatedFleet,
        policy: str,
        dispatcher: str,
        choice: CacheChoice | None,
    ) -> None:
        order, placing = plug_ins(policy, dispatcher, fleet.dispatcher_view())
        super().__init__(author, fleet, policy=order, dispatcher=placing, choice=choice)
        self.took_sim_s: list[float] = []
        self.queueing_sim_s: list[float] = []

    async def complete(self, request: Request) -> Completion:
        """The answer, at the virtual time of its completion."""
        sent_sim_s = self.now_sim_s
        completion = await super().complete(request)
        took_sim_s = self.now_sim_s - sent_sim_s
        assert completion.service is not None
        self.took_sim_s.append(took_sim_s)
        self.queueing_sim_s.append(took_sim_s - completion.service.duration_s)
        return completion
