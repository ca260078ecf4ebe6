"""Workers whose store is slow or wrong about leases: their commits are still correct."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.live.stored import Start, begin_run
from metropolis.store.async_redis_store import AsyncRedisStore
from metropolis.store.base import StoreUnavailableError
from metropolis.store.claim import Claim
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.redis import RedisStore
from metropolis.types import Dispatch, MetropolisError
from metropolis.workers import leases, response_cache
from metropolis.workers.invocations import Invocations
from metropolis.workers.optimistic.stored_commits import StoredCommits
from metropolis.workers.worker_spec import WorkerSpec
from metropolis.world.saved_check import save_checked
from tests.runtime.walkers import Meadow, PlainWalker, Walker, author, choose
from tests.store.lines import begin

STEPS = 30


class Slow(Scripted):
    def __init__(self) -> None:
        super().__init__(author)

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.005)
        return await super().complete(request)


class Rebinding(Walker):
    """Replaces its memory by a new object in each step, so that copies share nothing."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        said = await llm.chat(f"{observation} {self.memory[-3:]}", function="think", max_tokens=40)
        self.memory = [*self.memory, said.text]
        return choose(self, observation)


@dataclass
class Caching(Walker):
    """Learns places; its cache, which may be lost, saves it a look into its memory."""

    _at: Any = None

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if observation["at"] != self._at:
            self._at, learnt = observation["at"], f"came to {observation['at']}"
            if learnt not in self.memory:
                self.memory.append(learnt)
        return await super().proceed(observation, llm)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        assert isinstance(server, EmbeddedServer)
        yield server


def run(
    seed: int, agent: Any = Rebinding, lease_s: float = 1.0, steps: int = STEPS, **how: Any
) -> RunResult:
    world = Meadow(6, side=9, joint=1)
    agents = [agent(name) for name in world.names]
    return Simulation(world, agents, Client(Slow()), seed=seed, lease_s=lease_s, **how).run(steps)


@pytest.mark.parametrize(
    ("seed", "mode"), [*((seed, "out_of_order") for seed in range(3)), (0, "optimistic")]
)
def test_a_late_answer_about_a_lease_harms_no_later_step(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, seed: int, mode: str
) -> None:
    extend = RedisStore.extend

    def late(store: RedisStore, claim: Claim, lease_s: float) -> bool:
        held = extend(store, claim, lease_s)
        time.sleep(0.015)
        return held

    monkeypatch.setattr(RedisStore, "extend", late)
    monkeypatch.setattr(leases, "BEATS", 400)
    found = run(seed, store=server.url, mode=mode)
    assert found.history_sha256 == run(seed).history_sha256


@pytest.mark.parametrize("agent", [Rebinding, Walker, PlainWalker, Caching])
@pytest.mark.parametrize("how", [{"workers": 1}, {"workers": 2}, {"mode": "optimistic"}])
def test_leases_that_run_out_under_living_workers_cost_time_only(
    monkeypatch: pytest.MonkeyPatch, agent: Any, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(leases, "BEATS", 0.25)  # always too late
    steps = 12  # two workers take each other's steps all the time
    expected = run(7, agent, steps=steps)
    with EmbeddedServer() as server:
        found = run(7, agent, lease_s=0.005, steps=steps, store=server.url, **how)
        counts = server.store(server.runs()[0]).inspect().counts
    assert found.history_sha256 == expected.history_sha256
    assert counts["expired"] > 0
    assert counts["agent_steps"] == 6 * steps


def spec_of(agents: int) -> WorkerSpec:
    """For the run of `begin`."""
    world = Meadow(agents)
    walkers: list[Any] = [Walker(name) for name in world.names]
    how = {"one_by_one": False, "keep_text": False, "lease_s": 1.0, "stall_s": 60.0}
    return WorkerSpec(world, walkers, Client(Slow()), 0, 0.0, invocations=Invocations(), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{"workers": 1}, {"workers": 2}, {"mode": "optimistic"}])
def test_a_run_without_a_budget_gives_back_its_claims(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """The end of the run cancels a worker that ends already."""
    end = StoredCommits.end

    async def end_late(commits: StoredCommits) -> None:
        await asyncio.sleep(0.1)
        await end(commits)

    monkeypatch.setattr(StoredCommits, "end", end_late)
    world = Meadow(6, side=9, joint=1)
    agents = [Walker(name) for name in world.names]
    client = Client(Slow(), max_tokens=1)
    with EmbeddedServer() as server:
        assert Simulation(world, agents, client, store=server.url, **how).run(5).stopped
        store = server.store(server.runs()[0])
        least = min(store.nodes().steps)
        claims = store.claims("another", 1.0, most=6)
        assert least in {claim.step for claim in claims}


def test_an_agent_that_cannot_be_copied_is_told(server: EmbeddedServer) -> None:
    world = Meadow(2, side=9)
    agents = [Rebinding(name) for name in world.names]
    agents[1]._lock = threading.Lock()  # type: ignore[attr-defined]
    refusal = r"the agent 'w01' \(Rebinding\) cannot be copied \(.*lock.*\); all its fields"
    with pytest.raises(MetropolisError, match=refusal):
        Simulation(world, agents, Client(Slow()), store=server.url).run(3)


def begin_alone(store: RedisStore, spec: WorkerSpec) -> int:
    """Begin a run of one agent; return the fence of its lease."""
    start, minds = Start(0, spec.world.reset(seed=0, options={})), {0: save_checked(spec.agents[0])}
    begin_run(store, spec.world, spec.agents, minds, 0, start, 9, {})
    return store.take_lease("test", 60.0)


def test_a_worker_gives_back_claims_on_which_it_has_not_begun(server: EmbeddedServer) -> None:
    store, spec = server.store("until"), spec_of(1)
    store.dispatch(begin_alone(store, spec), [Dispatch(0, (0,))], {}, 0)
    asyncio.run(spec.worker("w", store, until=0).run())
    assert store.claim("another", 1.0) is not None


def test_a_worker_that_ends_leaves_the_commits_of_others_alone(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of a process share the answers on their way to the store."""
    monkeypatch.setattr(response_cache, "END_S", 0.0)
    store, commit = server.store("others"), AsyncRedisStore.commit
    spec, is_open = spec_of(1), asyncio.Event()
    fence = begin_alone(store, spec)

    async def commit_late(*arguments: Any) -> Any:
        await is_open.wait()
        return await commit(*arguments)

    async def check() -> None:
        workers = [spec.worker(name, store) for name in "ab"]
        running = {worker: asyncio.ensure_future(worker.run()) for worker in workers}
        store.dispatch(fence, [Dispatch(0, (0,))], {}, 0)
        while not any(one.commit for worker in workers for one in worker._open):
            await asyncio.sleep(0.01)
        idle, busy = sorted(workers, key=lambda worker: len(worker._open))
        running[idle].cancel()
        await asyncio.wait([running[idle]])
        is_open.set()
        while not running[busy].done() and store.nodes().steps != [1]:
            await asyncio.sleep(0.01)
        running[busy].cancel()
        await asyncio.wait([running[busy]])
        assert running[busy].cancelled()

    monkeypatch.setattr(AsyncRedisStore, "commit", commit_late)
    asyncio.run(check())
    assert store.nodes().steps == [1]


def test_a_worker_ends_though_its_store_is_away(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is cancelled while it repeats a claim, which it would do for PATIENCE_S."""
    monkeypatch.setattr(leases, "PATIENCE_S", 10.0)
    store, attempts = server.store("away"), 0
    begin(store, 3)
    spec = spec_of(3)

    async def away(*_: Any, **__: Any) -> Any:
        nonlocal attempts
        attempts += 1
        raise StoreUnavailableError("away")

    async def end() -> None:
        worker = asyncio.ensure_future(spec.worker("w", store).run())
        while not attempts:
            await asyncio.sleep(0.01)
        worker.cancel()
        await asyncio.wait([worker])

    monkeypatch.setattr(AsyncRedisStore, "claims", away)
    asyncio.run(end())
    assert attempts < 10.0 / leases.PAUSE_S / 2
