"""Claims clusters from a store, runs them in this process, and commits them.

Many claims are open at once, so that waits for language models overlap. Killing a worker is safe: a
claim expires unless its worker renews it, and a cluster is committed once. A worker's copy of an
agent's mind is valid only while this worker has committed the agent's last step; each claim
contains the minds for which this is not the case.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from metropolis.store.base import Store, StoreError
from metropolis.store.claim import Claim
from metropolis.types import Dispatch, MetropolisError
from metropolis.workers.agent_state import Minds
from metropolis.workers.leases import Pulse, retry_async
from metropolis.workers.local import LocalWorker
from metropolis.workers.response_cache import END_S, StoredAnswers
from metropolis.world.base import Agent, World

CLAIMS_MAX = 256
CLAIMS_AT_ONCE = 32
OTHERS_AT_ONCE = 4
"""For clusters that other workers ran last: their minds have to move."""
WAIT_S = 0.25
"""How long others' clusters are left to them, and the longest delay of a worker's end."""
IDLE_WAIT_S = 0.02
"""The same for an idle worker."""


@dataclass(eq=False)
class _Open:
    claim: Claim
    """For the current step."""
    commit: asyncio.Task[Claim | bool] | None = None
    """The commit of the previous step, or of the last one."""
    lost: bool = False
    """The claim belongs to another worker or to none: work on it no longer counts."""


class ClaimingWorker:
    """Runs clusters of a stored run in the order of their steps.

    `name` is unique to this object: the store assumes that it remembers its commits.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        world: World,
        agents: list[Agent],
        local: LocalWorker,
        answers: StoredAnswers,
        lease_s: float,
        claims_max: int = CLAIMS_MAX,
    ) -> None:
        """`agents` belong to this worker, and are the agents of `local`.

        `answers` is the journal of their client.
        """
        self.name = name
        self._store, self._world, self._agents = store, world, agents
        self._local, self._answers, self._lease_s = local, answers, lease_s
        self._link, self._claims_max = answers.link, claims_max
        self._minds = Minds(agents)
        self._open: dict[_Open, asyncio.Task[None]] = {}
        self._room = asyncio.Event()
        self._ending = False

    async def run(self) -> None:
        """Run until cancelled or until a cluster fails; open claims are then given back."""
        self._loop = asyncio.get_running_loop()
        try:
            with Pulse(self._lease_s, self._renew):
                async with asyncio.TaskGroup() as group:
                    while True:
                        await self._begin(group)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._local.close()
            await self._answers.end()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        """Claim the next clusters, if any become ready soon: own ones, else some of others."""
        while len(self._open) >= self._claims_max:
            self._room.clear()
            await self._room.wait()
        wait_s = WAIT_S if self._open else IDLE_WAIT_S
        if not await self._claim(group, wait_s, CLAIMS_AT_ONCE, own=True):
            await self._claim(group, 0.0, OTHERS_AT_ONCE, own=False)

    async def _claim(
        self, group: asyncio.TaskGroup, wait_s: float, most: int, own: bool
    ) -> list[Claim]:
        most = min(most, self._claims_max - len(self._open)) or 1
        asked = asyncio.ensure_future(
            retry_async(self._link.claims, self.name, self._lease_s, wait_s, most=most, own=own)
        )
        try:
            claims = await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._ending = True
            for claim in await asked:
                self._give_back(claim)
            raise
        for number, claim in enumerate(claims):
            try:
                await self._leave(claim)
            except asyncio.CancelledError:
                self._ending = True
                for left in claims[number:]:
                    self._give_back(left)
                raise
            opened = _Open(claim)
            self._open[opened] = group.create_task(self._work(opened))
            self._answers.take(claim.agents, claim.answers)
            self._open[opened].add_done_callback(partial(self._finish, opened))
        return claims

    def _finish(self, opened: _Open, _: asyncio.Task[None]) -> None:
        del self._open[opened]
        self._answers.forget(opened.claim.agents)
        self._room.set()

    async def _leave(self, claim: Claim) -> None:
        """Stop earlier claims on members of `claim`: these have expired."""
        members = set(claim.agents)
        earlier = [opened for opened in self._open if not members.isdisjoint(opened.claim.agents)]
        if not earlier:
            return
        for opened in earlier:
            self._lose(opened)
        await asyncio.gather(*(self._open[opened] for opened in earlier), return_exceptions=True)

    async def _work(self, opened: _Open) -> None:
        """Run the claimed step, and the following ones that need no new claim."""
        try:
            self._minds.take(opened.claim.minds)
            while await self._step(opened):
                pass
        except asyncio.CancelledError:
            await self._end(opened)
            if self._is_ours(opened):
                claim = opened.claim
                raise MetropolisError(
                    f"step {claim.step}, agent {self._agents[claim.agents[0]].name!r} or its "
                    "cluster: a task was cancelled from within; code that cancels a "
                    "task should catch its CancelledError"
                ) from None
            raise
        except BaseException:
            self._ending = True  # later cancellations are due to this failure
            await self._end(opened)
            raise

    async def _step(self, opened: _Open) -> bool:
        """Run one step; return whether to continue while its commit is in flight."""
        claim = opened.claim
        state = claim.slice.state(self._world.metric, self._world.perception_radius)
        cluster = Dispatch(claim.step, claim.agents)
        execution = await self._local.run(cluster, state, claim.number)
        claim = await self._committed(opened)
        minds = {agent: self._minds.changes(agent) for agent in claim.agents}
        execution = replace(execution, minds=minds)
        continues = claim.continues and not self._ending
        lease_s = self._lease_s if continues else None
        opened.commit = self._answers.commit(claim, execution, lease_s)
        if continues:
            opened.claim = claim.following(execution)
            self._answers.forget(claim.agents)
            self._answers.take(claim.agents, opened.claim.answers)
        else:
            await asyncio.shield(opened.commit)
        return continues

    async def _committed(self, opened: _Open) -> Claim:
        """The claim of the current step, after the commit of the previous step."""
        found: Claim | bool = True
        if opened.commit is not None:
            found = await asyncio.shield(opened.commit)
        if not found:  # another worker has committed it
            opened.lost = True
            raise asyncio.CancelledError
        if isinstance(found, Claim):
            return replace(opened.claim, slice=found.slice, until=found.until)
        return opened.claim

    async def _end(self, opened: _Open) -> None:
        """Give back what is not committed, once the pending commit has completed."""
        if opened.commit is not None:
            await asyncio.wait([opened.commit], timeout=END_S)
        self._give_back(opened.claim)

    def _is_ours(self, opened: _Open) -> bool:
        """Whether only the cluster itself can have been the cause of the cancellation."""
        return not self._ending and not opened.lost

    def _give_back(self, claim: Claim) -> None:
        with suppress(StoreError):  # the claim expires anyway
            self._store.give_back(claim)

    def _renew(self) -> None:
        """Renew all claims, in the thread of the pulse."""
        for opened in list(self._open):
            claim, commit = opened.claim, opened.commit
            if commit is not None and not commit.done():
                continue  # the commit's reply will show whether the claim is held
            try:
                held = self._store.extend(claim, self._lease_s)
            except StoreError:
                return  # the next claim or commit meets the same error
            if not held:
                self._loop.call_soon_threadsafe(self._is_lost, opened, claim)

    def _is_lost(self, opened: _Open, claim: Claim) -> None:
        """Drop the claim, unless the reply was late and its agents are at their next step."""
        if opened in self._open and opened.claim is claim:
            self._lose(opened)

    def _lose(self, opened: _Open) -> None:
        """Cancel work on a claim that was lost to another worker."""
        opened.lost = True
        self._open[opened].cancel()
        for agent in opened.claim.agents:  # plain agents may continue in their threads, in vain
            self._agents[agent] = copy(self._agents[agent])
