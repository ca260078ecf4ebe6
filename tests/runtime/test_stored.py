"""Runs in a store: the same history as in memory, in any store and however they end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request, UnavailableError
from metropolis.llm.client import Client
from metropolis.runtime.live.executor import Executor
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.base import FencedOutError, StoreError
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.memory import MemoryServer
from metropolis.types import MetropolisError
from tests.runtime import killable
from tests.runtime.purchases import LONG_LEASE_S, Counting, leave, same
from tests.runtime.walkers import Meadow, PlainWalker, Walker, author
from tests.store.lines import begin

STEPS = 25
SEED = 5
LEASE_S = 0.6


def simulation(
    backend: Scripted, *, agent: Any = Walker, lease_s: float = LEASE_S, **how: Any
) -> Simulation:
    world = Meadow(6, side=9, joint=1)
    agents = [agent(name) for name in world.names]
    return Simulation(world, agents, Client(backend, retries=0), seed=SEED, lease_s=lease_s, **how)


@pytest.fixture(scope="module")
def whole() -> RunResult:
    return simulation(Counting(), store="memory").run(STEPS)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("agent", [Walker, PlainWalker])
def test_the_history_is_that_of_a_run_in_memory(
    shared: EmbeddedServer, whole: RunResult, workers: int, agent: Any
) -> None:
    backend = Counting()
    where = {"store": shared.url, "workers": workers, "lease_s": LONG_LEASE_S}
    result = simulation(backend, agent=agent, **where).run(STEPS)
    same(result, whole)
    assert result.history == whole.history
    assert max(backend.bought.values()) == 1


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "lockstep"},
        {"mode": "sequential"},
        {"rule": "conservative"},
        {"mode": "optimistic", "waste_budget": 1.0},
        {"mode": "optimistic", "agent": PlainWalker},
    ],
)
def test_in_every_mode(shared: EmbeddedServer, whole: RunResult, how: dict[str, Any]) -> None:
    same(simulation(Counting(), store=shared.url, **how).run(STEPS), whole)


def test_a_run_goes_on_where_it_was_left(tmp_path: Path, whole: RunResult) -> None:
    draw, out = Random(1), tmp_path / "it"
    bought: Counter[Any] = Counter()
    for left_at in (3, 4, 11, STEPS):
        backend = Counting()
        where = {"resume": True} if out.exists() else {"store": "embedded"}
        run = simulation(backend, out=out, workers=draw.choice([1, 2]), **where)
        leave(run, STEPS, left_at)
        bought += backend.bought
    same(run.result(), whole)
    assert max(bought.values()) == 1


class Late(Counting):
    """Answers one agent much later than the others."""

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.02 if request.agent else 0.08)
        return await super().complete(request)


def test_an_optimistic_run_goes_on_where_its_agents_were_left(
    tmp_path: Path, shared: EmbeddedServer
) -> None:
    def far_apart(backend: Scripted, **how: Any) -> Simulation:
        world = Meadow(7, side=18, joint=1)
        agents = [Walker(name) for name in world.names]
        return Simulation(world, agents, Client(backend), seed=SEED, lease_s=LEASE_S, **how)

    whole, out = far_apart(Counting()).run(STEPS), tmp_path / "it"
    bought: Counter[Any] = Counter()
    spread = []
    for left_at, mode in [(6, "out_of_order"), (14, "optimistic"), (STEPS, "optimistic")]:
        where: dict[str, Any] = {"resume": True} if out.exists() else {"store": shared.url}
        backend = Late()
        run = far_apart(backend, out=out, mode=mode, **where)
        steps = run.steps(STEPS)
        for record in steps:
            if record.step >= left_at:
                spread.append(len(set(run.inspect().steps)))
                break
        steps.close()
        bought += backend.bought
    same(run.result(), whole)
    assert max(spread) > 1
    assert max(bought.values()) == 1


def test_answers_ahead_are_in_the_store(
    tmp_path: Path, shared: EmbeddedServer, whole: RunResult
) -> None:
    out = tmp_path / "it"
    ahead, bought = set(), Counter[Any]()
    for left_at in (3, 6, 9, 12, 15, STEPS):
        where: dict[str, Any] = {"resume": True} if out.exists() else {"store": shared.url}
        backend = Late()
        run = simulation(backend, out=out, mode="optimistic", waste_budget=1.0, **where)
        leave(run, STEPS, left_at)
        if left_at < STEPS:
            first = max(run.inspect().steps)
            ahead |= {key for key in backend.bought if key.step > first}
        bought += backend.bought
        (out / "journal.jsonl").write_bytes(b"")
    same(run.result(), whole)
    assert len(ahead) > 5, len(ahead)
    assert max(bought.values()) == 1


def test_a_model_that_fails_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, whole: RunResult
) -> None:
    where: dict[str, Any] = {"store": "embedded"}
    bought: Counter[Any] = Counter()
    for _ in range(100):
        backend = Counting(fails_at=25)
        run = simulation(backend, out=tmp_path / "it", **where)
        try:
            result = run.run(STEPS)
            break
        except UnavailableError:
            where = {"resume": True}
        finally:
            bought += backend.bought
    same(result, whole)
    assert max(bought.values()) == 1


def test_virtual_time_is_refused(shared: EmbeddedServer) -> None:
    from tests.runtime.test_resume import Counting as Virtual

    with pytest.raises(MetropolisError, match="virtual time ends with its process"):
        simulation(Virtual(), store=shared.url)


def test_a_store_that_is_none(whole: RunResult) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        simulation(Counting(), store="disk")


def check_killed(
    folder: Path, store: str, whole: RunResult, kills: int, seed: int, mode: str = "out_of_order"
) -> int:
    """Kill the process of a run `kills` times; return how many kills hit it mid-run."""
    draw, out = Random(seed), folder / "it"
    command = [sys.executable, "-m", "tests.runtime.killable", str(out), store, str(STEPS), mode]
    killed = 0
    for _ in range(kills):
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            while not (out / "store.json").exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.6))
            process.kill()
            _, errors = process.communicate()
            assert process.returncode in (0, -9), errors.decode()
        killed += process.returncode == -9
    same(killable.simulation(out, store, mode=mode).run(STEPS), whole)
    bought = Counter((folder / "bought").read_text().splitlines())
    assert set(bought.values()) <= set(range(1, killed + 2))
    again = bought.total() - (whole.calls if mode == "out_of_order" else len(bought))
    assert again <= killed * 6  # a walker has one call in flight at most
    return killed


@pytest.mark.parametrize(
    ("store", "mode"),
    [("embedded", "out_of_order"), ("shared", "out_of_order"), ("shared", "optimistic")],
)
def test_a_run_that_is_killed_goes_on(
    tmp_path: Path, shared: EmbeddedServer, store: str, mode: str, whole: RunResult
) -> None:
    address = shared.url if store == "shared" else store
    assert check_killed(tmp_path, address, whole, kills=2, seed=3, mode=mode) > 0


def test_who_is_taken_over_stops(tmp_path: Path, shared: EmbeddedServer, whole: RunResult) -> None:
    out = tmp_path / "it"
    run = simulation(Counting(), store=shared.url, out=out)
    steps = run.steps(STEPS)
    next(steps)
    run_name = json.loads((out / "store.json").read_text())["run"]
    store = shared.store(run_name)
    holder = store.inspect().holder
    assert holder is not None
    fence = store.take_lease(holder, 1.0)
    with pytest.raises(FencedOutError, match="was taken over"):
        list(steps)
    store.release_lease(fence)
    same(simulation(Counting(), out=out, resume=True).run(STEPS), whole)


class Workers:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_workers_end_if_another_process_holds_the_run() -> None:
    """Otherwise a Ray cluster that the run has started would remain."""
    store, workers = MemoryServer().store("held"), Workers()
    begin(store, 2)
    store.take_lease("another", 60)
    with pytest.raises(StoreError, match="held by another"):
        Executor(None, store, workers, print, last_step=5, max_velocity=1, lease_s=0.01)  # type: ignore[arg-type]
    assert workers.is_closed


class OneBehind(Scripted):
    """Never answers the first agent beyond its first steps; ends the run when another is ahead."""

    run: Simulation

    async def complete(self, request: Request) -> Completion:
        if request.agent == 0 and request.step > 1:
            await asyncio.get_running_loop().create_future()
        if request.step > 14:
            self.run.interrupt()
        return await super().complete(request)


def test_a_run_does_not_end_behind_an_agent(tmp_path: Path, valkey: EmbeddedServer) -> None:
    def made(llm: Scripted, **how: Any) -> Simulation:
        world, out = Meadow(5, side=60, joint=1), tmp_path / "it"
        agents = [Walker(name) for name in world.names]
        return Simulation(world, agents, Client(llm), seed=3, **{"out": out, **how})

    slow = OneBehind(author)
    slow.run = made(slow, store=valkey.url)
    assert slow.run.run(60).steps < 10
    with pytest.raises(MetropolisError, match=r"an agent has already reached step \d\d in"):
        made(Scripted(author), resume=True).run(12)
    result = made(Scripted(author), resume=True, store="memory").run(12)
    assert result.history_sha256 == made(Scripted(author), out=None).run(12).history_sha256
