"""Agents far from all others continue on their own: same history, and nothing bought twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request, UnavailableError
from metropolis.llm.client import Client
from metropolis.rules.metrics import CHEBYSHEV, EUCLIDEAN, MANHATTAN
from metropolis.runtime.live.executor import Executor
from metropolis.runtime.live.result import Interrupted, RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.embedded import EmbeddedServer
from metropolis.workers import leases
from metropolis.workers.claim_worker import ClaimingWorker
from tests.runtime.purchases import LONG_LEASE_S, Counting, same
from tests.runtime.walkers import Meadow, PlainWalker, Walker

STEPS = 30


def simulation(
    backend: Scripted, *, agent: Any = Walker, seed: int = 1, lease_s: float = 0.6, **how: Any
) -> Simulation:
    """Few agents on a wide meadow; the seed determines agents, perception and velocity."""
    draw = Random(seed)
    world = Meadow(
        draw.randint(2, 8),
        side=draw.choice([15, 30, 60]),
        radius=draw.choice([1, 2, 4]),
        velocity=draw.choice([1, 2]),
        joint=1,
        metric=draw.choice([CHEBYSHEV, EUCLIDEAN, MANHATTAN]),
    )
    agents = [agent(name) for name in world.names]
    return Simulation(world, agents, Client(backend, retries=0), seed=seed, lease_s=lease_s, **how)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("agent", [Walker, PlainWalker])
@pytest.mark.parametrize("seed", range(5))
def test_the_history_is_that_of_a_run_in_memory(
    shared: EmbeddedServer, tmp_path: Path, seed: int, agent: Any, workers: int
) -> None:
    how = {"agent": agent, "seed": seed, "rule": ["versioned", "conservative"][seed % 2]}
    backend, out = Counting(), tmp_path / f"run-{seed}-{agent.__name__}-{workers}"
    where = {"store": shared.url, "workers": workers, "out": out, "lease_s": LONG_LEASE_S}
    run = simulation(backend, **where, **how)
    same(run.run(STEPS), simulation(Counting(), store="memory", **how).run(STEPS))
    assert max(backend.bought.values()) == 1
    assert run._stored is not None
    counts = run._stored.store.inspect().counts
    assert counts["agent_steps"] == len(run.agents) * STEPS
    assert counts["ahead"] > 0


def test_on_ray(valkey: EmbeddedServer, cluster: None) -> None:
    expected = simulation(Counting(), store="memory").run(STEPS)
    run = simulation(Counting(), store=valkey.url, workers="ray:2", lease_s=LONG_LEASE_S)
    same(run.run(STEPS), expected)


class Slow(Counting):
    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.02)
        return await super().complete(request)


@pytest.mark.parametrize("seed", range(2))
def test_leases_that_run_out_under_living_workers_cost_time_only(
    shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    steps = 10  # two workers take each other's steps most of the time
    expected = simulation(Counting(), seed=seed, store="memory").run(steps)
    # Some leases are long: on a slow machine no step would end within a short one.
    draw = Random(seed)
    lease_s = property(lambda _: draw.choice([0.01, 0.01, LONG_LEASE_S]), lambda *_: None)
    monkeypatch.setattr(ClaimingWorker, "_lease_s", lease_s, raising=False)
    monkeypatch.setattr(leases, "BEATS", 0.25)  # always too late
    where = {"store": shared.url, "out": tmp_path / f"late-{seed}", "workers": 1 + seed % 2}
    run = simulation(Slow(), seed=seed, lease_s=0.01, **where)
    same(run.run(steps), expected)
    assert run._stored is not None
    assert run._stored.store.inspect().counts["expired"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_who_is_interrupted_or_fails_goes_on(tmp_path: Path, seed: int) -> None:
    draw, out = Random(seed), tmp_path / "it"
    bought: Counter[Any] = Counter()
    result: RunResult | None = None
    while result is None:
        backend = Counting(fails_at=draw.choice([5, 15, 1 << 30]))
        where = {"resume": True} if out.exists() else {"store": "embedded"}
        run = simulation(backend, seed=seed, out=out, workers=draw.choice([1, 2]), **where)
        last = draw.choice([draw.randrange(STEPS), STEPS])
        try:
            steps = run.steps(STEPS)
            for record in steps:
                if record.step >= last:
                    break
            else:
                result = run.result()
            steps.close()
        except UnavailableError:
            pass
        bought += backend.bought
    same(result, simulation(Counting(), seed=seed, store="memory").run(STEPS))
    assert max(bought.values()) == 1


def test_what_was_done_when_nobody_recorded_is_recorded(
    tmp_path: Path, shared: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf(Executor):
        async def advance(self) -> None:
            while min(self._store.nodes().steps) < 5:
                await asyncio.sleep(0.01)
            self.end(Interrupted("enough"))

    def alone(**how: Any) -> Simulation:
        world = Meadow(1)
        return Simulation(world, [Walker("w00")], Client(Counting()), lease_s=0.6, **how)

    out = tmp_path / "alone"
    with monkeypatch.context() as patched:
        patched.setattr("metropolis.runtime.live.simulation.Executor", Deaf)
        assert alone(store=shared.url, out=out).run(5).stopped
    same(alone(out=out, resume=True).run(5), alone(store="memory").run(5))
