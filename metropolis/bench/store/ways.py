"""Ways to run the same agents: the engine with its stores, and two baselines without a store.

Agents make one call per step to a stub model. The baselines have no store, no history and no
causality: an asyncio loop in lock-step, and a process pool with a barrier after every step.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metropolis.bench._processes import cpu_s
from metropolis.bench.overhead import SEED, Posts, Sentry, question_of
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.runtime.live.simulation import Simulation
from metropolis.world.entities import Entity

if TYPE_CHECKING:
    from metropolis.store.embedded import EmbeddedServer

WORKERS, LOCAL_WORKERS = 2, 4
"""Workers on Ray, and in one process."""
WARM_SHARE = 0.2
"""Share of the steps before measurement starts: processes start, connections open."""


class DelayedModel(Scripted):
    """A model whose answers take `latency_s` each."""

    def __init__(self, latency_s: float) -> None:
        super().__init__(_author)
        self._latency_s = latency_s

    async def complete(self, request: Request) -> Completion:
        """Answer after `latency_s`."""
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        return await super().complete(request)


def _author(request: Request, draw: Any) -> str:  # noqa: ARG001
    return "Nothing."


class Crowd(Posts):
    """All agents stand at the same post, so that they form one cluster."""

    name = "crowd"

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:  # noqa: ARG002
        """Place all agents at one position."""
        return [Entity(name, (0.0, 0.0), "agent") for name in self.posts]


@dataclass(frozen=True)
class Load:
    """The steps and calls of all agents."""

    agents: int
    steps: int
    latency_s: float = 0.0
    together: bool = False


@dataclass(frozen=True)
class Duration:
    """Time of a run after the warm-up."""

    wall_s: float
    cpu_s: float
    """CPU time of all its processes."""


Steps = Iterator[object]
"""Yields one item per step, once all agents have passed it."""


def measure_steps(load: Load, steps: Steps) -> Duration:
    """Measure a run without its first steps."""
    warm = max(1, int(load.steps * WARM_SHARE))
    wall_s = used_s = 0.0
    for number, _ in enumerate(steps, start=1):
        if number == warm:
            wall_s, used_s = time.perf_counter(), cpu_s()
        if number == load.steps:
            wall_s, used_s = time.perf_counter() - wall_s, cpu_s() - used_s
    return Duration(wall_s, used_s)


def counted_steps(load: Load) -> int:
    """Return the number of steps that `measure_steps` measures."""
    return load.steps - max(1, int(load.steps * WARM_SHARE))


# --- the ways


def in_a_store(load: Load, store: str, workers: int | str) -> Steps:
    """Run the engine in a store."""
    world = (Crowd if load.together else Posts)(load.agents)
    agents = [Sentry(name) for name in world.posts]
    simulation = Simulation(
        world, agents, DelayedModel(load.latency_s), seed=SEED, store=store, workers=workers
    )
    yield from simulation.steps(load.steps)


def in_asyncio(load: Load) -> Steps:
    """Run a lock-step loop."""

    async def one(name: str, step: int) -> str:
        question = question_of(name, step)
        if load.latency_s:
            await asyncio.sleep(load.latency_s)
        return f"{question} Nothing."

    loop = asyncio.new_event_loop()
    names = [f"agent {i}" for i in range(load.agents)]

    async def run_step(step: int) -> list[str]:
        return await asyncio.gather(*(one(name, step) for name in names))

    for step in range(load.steps):
        yield loop.run_until_complete(run_step(step))
    loop.close()


def in_processes(load: Load) -> Steps:
    """Run a process pool with a barrier after every step."""
    processes = WORKERS if not load.latency_s else load.agents  # so that waiting overlaps
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for step in range(load.steps):
            calls = [(f"agent {i}", step, load.latency_s) for i in range(load.agents)]
            yield pool.starmap(_call, calls)


def _call(name: str, step: int, latency_s: float) -> str:
    if latency_s:
        time.sleep(latency_s)
    return f"{question_of(name, step)} Nothing."


Way = Callable[[Load], Steps]


@contextmanager
def servers() -> Iterator[dict[str, EmbeddedServer]]:
    """Start servers that write their files with every commit; Valkey replaces a missing Redis."""
    from metropolis.store.embedded import EmbeddedServer  # metropolis[redis]

    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedServer(Path(folder) / "embedded")
        redis = EmbeddedServer(Path(folder) / "redis", binary=shutil.which("redis-server"))
        with embedded, redis:
            yield {"embedded": embedded, "redis": redis}


def ways(embedded: EmbeddedServer, redis: EmbeddedServer) -> dict[str, Way]:
    """Return all ways."""
    return {
        "plain asyncio": in_asyncio,
        "plain multiprocessing": in_processes,
        "memory": lambda load: in_a_store(load, "memory", 1),
        "embedded": lambda load: in_a_store(load, embedded.url, 1),
        f"embedded, {LOCAL_WORKERS} workers": lambda load: in_a_store(
            load, embedded.url, LOCAL_WORKERS
        ),
        "redis+local": lambda load: in_a_store(load, redis.url, 1),
        f"redis+ray:{WORKERS}": lambda load: in_a_store(load, redis.url, f"ray:{WORKERS}"),
    }
