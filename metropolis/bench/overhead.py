"""`metropolis bench overhead`: the time the engine adds to its calls, beside other frameworks.

Agents that never meet make one call per step to a stub server in another process; a bare asyncio
loop makes the same calls in the same run. The agents are independent, so the ideal wall time is the
largest sum of one agent's latencies, which are known.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import click
from gymnasium.spaces import Discrete

from metropolis.bench import need
from metropolis.bench.stub_server import MODEL, latency_s, stub_server
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend
from metropolis.progress import progress_bar
from metropolis.runtime.live.simulation import Simulation
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.transaction import Transaction
from metropolis.world.view import View

SEED = 1
APART = 10.0
"""Distance between neighbouring agents, which never meet."""
IDLE_AGENTS, IDLE_STEPS = 1000, 20
"""Size of the run without calls."""


@dataclass(frozen=True)
class Load:
    """The calls of all agents."""

    name: str
    agents: int
    steps: int
    mean_s: float


LOADS = (
    Load("no latency", 200, 25, 0.0),
    Load("1 s mean", 50, 5, 1.0),
    Load("100 ms mean", 1000, 3, 0.1),
)


@dataclass(frozen=True)
class Peer:
    """Figures of another framework with a similar stub, from another day and a similar machine.

    One LLM call per agent per step, medians of 3, measured before this project began; CPU ms per
    agent-step as a range. Ideals of those draws: 11.2 and 1.6 s without a barrier.
    """

    name: str
    cpu_ms: str
    wall_50x5_s: str
    wall_1000x3_s: str


PEER_IDEALS_S = {"50 x 5": 11.2, "1000 x 3": 1.6}
PEERS = (
    Peer("bare asyncio", "0.05-0.4", "11.2", "1.75"),
    Peer("Mesa-LLM 0.3.2", "4.8-9.5", "27.6", "14.6"),
    Peer("AgentSociety2 2.9.3", "7.2-16", "27.4-31.6", "15.5"),
    Peer("Concordia 2.4", "7.3-9.5", "27.7", "26.8"),
    Peer("OASIS 0.2.5", "11.6-16", "29.4", "47.1"),
)


@dataclass(frozen=True)
class Measured:
    """One client under one load; medians over the repetitions."""

    load: str
    agents: int
    steps: int
    mean_latency_s: float
    way: str
    cpu_ms_per_agent_step: float
    wall_s: float
    ideal_wall_s: float
    """Ideal time without a barrier: the largest sum of one agent's latencies."""
    barrier_wall_s: float
    """Ideal time with a barrier after every step: the sum of each step's longest latency."""


class Posts(World):
    """A world in which each agent stands at its own post, out of sight of the others."""

    name, perception_radius, max_velocity = "posts", 1.0, 1.0
    observation_space = action_space = Discrete(1)

    def __init__(self, count: int) -> None:
        self.posts = [f"agent {i}" for i in range(count)]

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:  # noqa: ARG002
        """Place an agent at every post."""
        return [Entity(name, (i * APART, 0.0), "agent") for i, name in enumerate(self.posts)]

    def observe(self, view: View) -> int:  # noqa: ARG002
        """Nothing."""
        return 0

    def resolve(self, cluster: Transaction) -> None:
        """Change nothing."""


@dataclass
class Sentry(Agent):
    """Makes one call per step."""

    name: str

    async def proceed(self, observation: Any, llm: Any) -> int:  # noqa: ARG002
        """Call the model, and stay."""
        await llm.chat(question_of(self.name, self.step), function="act", max_tokens=16)
        return 0


@dataclass
class Idler(Agent):
    """Makes no calls."""

    name: str

    async def proceed(self, observation: Any, llm: Any) -> int:  # noqa: ARG002
        """Stay."""
        return 0


def question_of(name: str, step: int) -> str:
    """Return the unique prompt of `name` at `step`."""
    return f"You are {name}. It is step {step}. What do you do next? One short sentence."


def ideals_s(load: Load) -> tuple[float, float]:
    """Return the wall times without and with a barrier if only answers took time."""
    drawn = [
        [latency_s(SEED, question_of(f"agent {i}", s), load.mean_s) for s in range(load.steps)]
        for i in range(load.agents)
    ]
    return max(map(sum, drawn)), sum(map(max, zip(*drawn, strict=True)))


def run_bare(load: Load, url: str) -> None:
    """Make the same calls without causality, history, limits and retries."""
    import aiohttp

    async def one(session: aiohttp.ClientSession, name: str) -> None:
        for step in range(load.steps):
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": question_of(name, step)}],
                "max_tokens": 16,
            }
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                json.loads(await response.read())["choices"][0]["message"]["content"]

    async def run_all() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*[one(session, f"agent {i}") for i in range(load.agents)])

    asyncio.run(run_all())


def run_engine(load: Load, backend: Backend) -> None:
    """Make the same calls by agents of a world, out of order."""
    world = Posts(load.agents)
    Simulation(world, [Sentry(name) for name in world.posts], backend, seed=SEED).run(load.steps)


WAYS: dict[str, Callable[[Load, str], None]] = {
    "bare asyncio + aiohttp": run_bare,
    "metropolis": lambda load, url: run_engine(load, Compatible(url, MODEL)),
    "metropolis, openai package": lambda load, url: run_engine(load, OpenAIClient(url, MODEL)),
}


def measure(load: Load, repetitions: int, progress: Callable[[int], None]) -> list[Measured]:
    """Measure every client, interleaved, on the same server; call `progress` after each run."""
    cpu_s: dict[str, list[float]] = {way: [] for way in WAYS}
    wall_s: dict[str, list[float]] = {way: [] for way in WAYS}
    with stub_server(load.mean_s, SEED) as url:
        for _ in range(repetitions):
            for way, run in WAYS.items():
                gc.collect()  # do not charge this run for the garbage of the previous one
                began = time.process_time(), time.perf_counter()
                run(load, url)
                cpu_s[way].append(time.process_time() - began[0])
                wall_s[way].append(time.perf_counter() - began[1])
                progress(1)
    ideal_wall_s, barrier_wall_s = ideals_s(load)
    return [
        Measured(
            load.name,
            load.agents,
            load.steps,
            load.mean_s,
            way,
            median(cpu_s[way]) * 1000 / (load.agents * load.steps),
            median(wall_s[way]),
            ideal_wall_s,
            barrier_wall_s,
        )
        for way in WAYS
    ]


def idle_agent_steps_per_cpu_s(repetitions: int) -> float:
    """Measure the engine alone: agent-steps without calls, with the history in memory."""
    rates = []
    for _ in range(repetitions):
        world = Posts(IDLE_AGENTS)
        simulation = Simulation(world, [Idler(name) for name in world.posts], Scripted())
        began = time.process_time()
        simulation.run(IDLE_STEPS)
        rates.append(IDLE_AGENTS * IDLE_STEPS / (time.process_time() - began))
    return median(rates)


@click.command("overhead")
@click.option("--repetitions", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(repetitions: int, as_json: bool) -> None:
    """Measure CPU time per agent-step and wall time against the ideal; takes four minutes.

    The calls are real HTTP requests to a stub server on this machine; its latencies are random.
    """
    need("gateway", "aiohttp")
    need("openai", "openai")
    with progress_bar(len(LOADS) * len(WAYS) * repetitions, "runs") as (advance, describe):
        rows = []
        for load in LOADS:
            describe(f"{load.agents} x {load.steps}, {load.name}")
            rows += measure(load, repetitions, advance)
    idle = idle_agent_steps_per_cpu_s(repetitions)
    if as_json:
        found = {"loads": [asdict(row) for row in rows], "idle_agent_steps_per_cpu_s": idle}
        click.echo(json.dumps(found | {"peers": [asdict(peer) for peer in PEERS]}, indent=2))
        return
    for row in rows:
        if row.way == next(iter(WAYS)):
            click.echo(
                f"{row.agents} agents x {row.steps} steps, {row.load}: ideal {row.ideal_wall_s:.2f}"
                f" s, with a barrier {row.barrier_wall_s:.2f} s"
            )
        over = f"{row.wall_s / row.ideal_wall_s:.2f} x ideal" if row.ideal_wall_s else ""
        click.echo(
            f"  {row.way:<28} CPU {row.cpu_ms_per_agent_step:.3f} ms per agent-step  "
            f"wall {row.wall_s:7.2f} s  {over}"
        )
    click.echo(f"without calls: {idle:,.0f} agent-steps per CPU-second")
    click.echo(
        "\nPeers, measured on another day on a similar machine: CPU ms per agent-step; wall s of "
        f"50 x 5 (ideal {PEER_IDEALS_S['50 x 5']}), of 1000 x 3 (ideal {PEER_IDEALS_S['1000 x 3']})"
    )
    for peer in PEERS:
        click.echo(
            f"  {peer.name:<28} {peer.cpu_ms:>9}  {peer.wall_50x5_s:>9}  {peer.wall_1000x3_s:>6}"
        )
