"""Commits of an optimistic worker whose claims are lost to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.checked_run import INFO, CheckedRun
from metropolis.store.claim import Claim
from metropolis.store.memory import MemoryServer
from metropolis.workers.optimistic.stored_commits import StoredCommits
from metropolis.workers.response_cache import StoredAnswers
from metropolis.world.entities import AGENT, Entity
from tests.store.snapshot_server import SnapshotServer

LEASE_S = 0.05
AGENTS = range(len(INFO.agents))


def new_run(store: Store) -> CheckedRun:
    bodies = [Entity(name, (10 * agent, 0), AGENT) for agent, name in enumerate(INFO.agents)]
    store.begin(INFO, bodies, {agent: {"by": None} for agent in AGENTS})
    run = CheckedRun(store, store.take_lease("controller", 60.0))
    run.dispatch(*((0, (agent,)) for agent in AGENTS))
    return run


async def begun(store: Store) -> StoredCommits:
    """Commits whose claims have expired, because nothing renews them."""
    answers = StoredAnswers(store)
    commits = StoredCommits("ours", store, answers, LEASE_S, INFO.first_step, len(AGENTS))
    await commits.begin()
    await asyncio.sleep(2 * LEASE_S)
    return commits


def claimed_by_another(store: Store) -> Sequence[Claim]:
    claims = store.claims("another", 60.0, most=len(AGENTS))
    assert len(claims) == len(AGENTS)
    return claims


def add(commits: StoredCommits, run: CheckedRun, claim: Claim) -> None:
    execution = run.execution_of(claim)
    minds: Any = execution.minds
    commits.add(execution, minds)


def test_a_step_of_another_worker_is_not_built_upon() -> None:
    async def check() -> None:
        store = MemoryServer().store("it")
        run = new_run(store)
        commits = await begun(store)
        first, *_ = claimed_by_another(store)
        add(commits, run, first)  # is refused: another worker has claimed it
        assert run.commit(first)
        (theirs,) = store.acknowledgements("0", 0.0)
        with pytest.raises(StoreError, match=r"step 0 of agents \(0,\) was committed by another"):
            commits.acknowledge(theirs.execution)
        await commits.end()

    asyncio.run(check())


def test_a_refused_result_is_sent_again_once_it_is_claimed_again() -> None:
    async def check() -> None:
        store = MemoryServer().store("it")
        run = new_run(store)
        commits = await begun(store)
        theirs = claimed_by_another(store)
        for claim in theirs:
            add(commits, run, claim)
        await asyncio.sleep(LEASE_S)
        assert store.inspect().counts["refused"] == len(theirs)
        for claim in theirs:
            store.give_back(claim)
        failures: list[BaseException] = []
        commits.start(failures.append)
        while len(acknowledged := store.acknowledgements("0", 0.0)) < len(theirs):
            await asyncio.sleep(0.01)
        for one in acknowledged:
            commits.acknowledge(one.execution)
        await commits.end()
        assert not failures

    asyncio.run(check())


def test_a_result_that_a_restart_of_the_server_has_lost_is_sent_again() -> None:
    """The snapshot contains its claim, which is renewed."""

    async def check(server: SnapshotServer) -> None:
        store = server.store("it")
        run = new_run(store)
        answers = StoredAnswers(store)
        commits = StoredCommits("ours", store, answers, 60.0, INFO.first_step, len(AGENTS))
        await commits.begin()
        server.save()
        add(commits, run, commits._claims[0])
        async with asyncio.timeout(10):
            while not commits._committed:
                await asyncio.sleep(0.01)
            server.restart()
            assert store.acknowledgements("0", 0.0) == []  # the controller accepts
            await asyncio.to_thread(commits.renew)
            while not (acknowledged := store.acknowledgements("0", 0.0)):
                await asyncio.sleep(0.01)
        commits.acknowledge(acknowledged[0].execution)
        assert not commits._committed
        await commits.end()

    with SnapshotServer() as server:
        asyncio.run(check(server))


def test_a_result_is_not_sent_because_another_one_of_its_call_is_committed() -> None:
    """Clusters claimed in one call have one number."""

    async def check() -> None:
        store = MemoryServer().store("it")
        run = new_run(store)
        answers = StoredAnswers(store)
        commits = StoredCommits("ours", store, answers, 60.0, INFO.first_step, len(AGENTS))
        await commits.begin()

        async def sent() -> None:
            await asyncio.gather(*answers._in_flight.values())
            await asyncio.sleep(0)

        for agent in (0, 1):
            add(commits, run, commits._claims[agent])
        await sent()
        run.dispatch((1, (0,)), (1, (1,)))
        claims = await commits._claim()
        assert len({claim.number for claim in claims}) == 1 < len(claims)
        first, second = store.acknowledgements("0", 0.0)
        commits.acknowledge(first.execution)
        for claim in claims:
            add(commits, run, claim)
        await sent()
        await asyncio.to_thread(commits.renew)
        await asyncio.sleep(0)
        await sent()
        assert sorted(store.nodes().steps) == [0, 0, 1, 2]  # the other first step is not known yet
        commits.acknowledge(second.execution)
        await sent()
        assert sorted(store.nodes().steps) == [0, 0, 2, 2]
        await commits.end()

    asyncio.run(check())


@pytest.mark.parametrize("is_slow", [False, True])
def test_the_end_does_not_wait_for_a_store_that_is_away(is_slow: bool) -> None:
    async def away(*_: Any, **__: Any) -> Sequence[Claim]:
        if is_slow:
            await asyncio.sleep(60)
        raise StoreUnavailableError("the store does not answer")

    given_back = []

    def give_back(claim: Claim) -> None:
        given_back.append(claim)
        raise StoreUnavailableError("the store does not answer")

    async def check() -> None:
        store = MemoryServer().store("it")
        new_run(store)
        commits = await begun(store)
        store.give_back = give_back  # type: ignore[method-assign]
        commits._async_store.claims = away  # type: ignore[method-assign]
        failures: list[BaseException] = []
        commits.start(failures.append)
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await commits.end()
        assert not failures
        assert len(given_back) == 1  # each would wait until the connection times out

    asyncio.run(check())
