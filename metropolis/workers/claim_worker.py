"""Claims clusters from a store, runs them in this process, and commits them.

Many claims are open at once, so that waits for language models overlap. Killing a worker is safe: a
claim expires unless its worker renews it, and a cluster is committed once. A worker's copy of an
agent's mind is valid only while this worker has committed the agent's last step; each claim
contains the minds for which this is not the case.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.claim import Claim
from metropolis.types import Dispatch, Step
from metropolis.workers.agent_state import Minds
from metropolis.workers.event_loop import to_its_end
from metropolis.workers.invocations import cancelled_from_within
from metropolis.workers.leases import Heartbeat, retry_async
from metropolis.workers.local import LocalWorker
from metropolis.workers.response_cache import END_S, StoredAnswers
from metropolis.world.base import Agent, World

CLAIMS_MAX = 256
CLAIMS_AT_ONCE = 32
OTHERS_AT_ONCE = 4
"""Maximum number of claims at once of clusters that other workers ran last, whose minds have to be
sent."""
WAIT_S = 0.25
"""Time that a busy worker waits before it claims clusters that other workers ran last; also the
longest delay of the worker's end."""
IDLE_WAIT_S = 0.02
"""Time that an idle worker waits before it claims such clusters."""


@dataclass(eq=False)
class _OpenClaim:
    claim: Claim
    """The claim of the current step."""
    commit: asyncio.Task[Claim | bool] | None = None
    """The commit of the previous step or, at the end, of the last step."""
    begun: bool = False
    """Whether the claim's task has begun to run; it may be cancelled before."""
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
        until: Step | None = None,
    ) -> None:
        """`agents` belong to this worker, and are the agents of `local`.

        `answers` is the journal of their client. `until`: the worker ends once all agents are at
        this step, which it claims, but does not run.
        """
        self.name = name
        self._store, self._world, self._agents = store, world, agents
        answers.workers += 1
        self._local, self._answers, self._lease_s = local, answers, lease_s
        self._async_store, self._until = answers.async_store, until
        self._claims_max = CLAIMS_MAX if until is None else max(CLAIMS_MAX, len(agents) + 1)
        self._minds = Minds(agents)
        self._open: dict[_OpenClaim, asyncio.Task[None]] = {}
        self._capacity = asyncio.Event()
        self._ending = False
        self._failure: StoreError | None = None
        """The error that ended the renewal of claims."""

    async def run(self) -> None:
        """Run until `until`, cancelled or a cluster fails; open claims are then given back."""
        self._loop = asyncio.get_running_loop()
        try:
            with Heartbeat(self._lease_s, self._renew):
                async with asyncio.TaskGroup() as group:
                    while not self._is_complete():
                        try:
                            await self._claim_more(group)
                        except BaseException:
                            self._ending = True  # later cancellations are due to this failure
                            raise
                    self._ending = True
                    for held in self._open.values():
                        held.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._local.close()
            self._answers.workers -= 1
            if not self._answers.workers:
                await to_its_end(self._answers.end())

    def _is_complete(self) -> bool:
        """Whether all agents are at the step `until`."""
        held = (len(one.claim.agents) for one in self._open if one.claim.step == self._until)
        return sum(held) == len(self._agents)

    async def _claim_more(self, group: asyncio.TaskGroup) -> None:
        """Claim ready clusters, first those that no other worker ran last."""
        if self._failure is not None:
            raise self._failure
        while len(self._open) >= self._claims_max:
            self._capacity.clear()
            await self._capacity.wait()
        wait_s = WAIT_S if self._open else IDLE_WAIT_S
        if not await self._claim(group, wait_s, CLAIMS_AT_ONCE, own=True):
            await self._claim(group, 0.0, OTHERS_AT_ONCE, own=False)

    async def _claim(
        self, group: asyncio.TaskGroup, wait_s: float, most: int, own: bool
    ) -> list[Claim]:
        most = min(most, self._claims_max - len(self._open)) or 1
        request = asyncio.ensure_future(
            retry_async(
                self._async_store.claims, self.name, self._lease_s, wait_s, most=most, own=own
            )
        )
        try:
            claims = await asyncio.shield(request)
        except asyncio.CancelledError:
            self._ending = True
            await to_its_end(self._give_back_late(request))
            raise
        for number, claim in enumerate(claims):
            try:
                await self._cancel_earlier(claim)
            except asyncio.CancelledError:
                self._ending = True
                for left in claims[number:]:
                    self._answers.give_back(left)
                raise
            open_claim = _OpenClaim(claim)
            self._open[open_claim] = group.create_task(self._run_claim(open_claim))
            self._answers.take(claim.agents, claim.answers)
            self._open[open_claim].add_done_callback(partial(self._finish, open_claim))
        return claims

    async def _give_back_late(self, request: asyncio.Future[list[Claim]]) -> None:
        with suppress(StoreError, TimeoutError):  # the claims expire anyway
            for claim in await asyncio.wait_for(request, END_S):
                self._answers.give_back(claim)

    def _finish(self, open_claim: _OpenClaim, _: asyncio.Task[None]) -> None:
        del self._open[open_claim]
        if not open_claim.begun:
            self._answers.give_back(open_claim.claim)
        self._answers.forget(open_claim.claim.agents)
        self._capacity.set()

    async def _cancel_earlier(self, claim: Claim) -> None:
        """Stop earlier claims on members of `claim`: these have expired."""
        members = set(claim.agents)
        earlier = [one for one in self._open if not members.isdisjoint(one.claim.agents)]
        if not earlier:
            return
        for open_claim in earlier:
            self._lose(open_claim)
        await asyncio.gather(*(self._open[one] for one in earlier), return_exceptions=True)

    async def _run_claim(self, open_claim: _OpenClaim) -> None:
        """Run the claimed step, and the following ones that need no new claim."""
        open_claim.begun = True
        try:
            if open_claim.claim.step == self._until:
                await self._loop.create_future()  # held until the worker ends
            self._minds.take(open_claim.claim.minds)
            while await self._step(open_claim):
                pass
        except asyncio.CancelledError:
            await self._end(open_claim)
            if self._is_ours(open_claim):
                claim = open_claim.claim
                name = self._agents[claim.agents[0]].name
                raise cancelled_from_within(claim.step, name) from None
            raise
        except BaseException:
            self._ending = True  # later cancellations are due to this failure
            await self._end(open_claim)
            raise

    async def _step(self, open_claim: _OpenClaim) -> bool:
        """Run one step; return whether to continue while its commit is in flight."""
        claim = open_claim.claim
        state = claim.snapshot.state(self._world.metric, self._world.perception_radius)
        cluster = Dispatch(claim.step, claim.agents)
        execution = await self._local.run(cluster, state, claim.number)
        claim = await self._previous_commit(open_claim)
        minds = {agent: self._minds.changes(agent) for agent in claim.agents}
        execution = replace(execution, minds=minds)
        continues = claim.continues and not self._ending and claim.step + 1 != self._until
        lease_s = self._lease_s if continues else None
        open_claim.commit = self._answers.commit(claim, execution, lease_s)
        if continues:
            open_claim.claim = claim.following(execution)
            self._answers.forget(claim.agents)
            self._answers.take(claim.agents, open_claim.claim.answers)
        else:
            await asyncio.shield(open_claim.commit)
        return continues

    async def _previous_commit(self, open_claim: _OpenClaim) -> Claim:
        """The claim of the current step, after the commit of the previous step."""
        found: Claim | bool = True
        if open_claim.commit is not None:
            found = await asyncio.shield(open_claim.commit)
        if not found:  # another worker has committed it
            open_claim.lost = True
            raise asyncio.CancelledError
        if isinstance(found, Claim):
            return replace(open_claim.claim, snapshot=found.snapshot, until=found.until)
        return open_claim.claim

    async def _end(self, open_claim: _OpenClaim) -> None:
        """Give back what is not committed, once the pending commit has completed."""
        try:
            if open_claim.commit is not None:
                await asyncio.wait([open_claim.commit], timeout=END_S)
        finally:
            self._answers.give_back(open_claim.claim)

    def _is_ours(self, open_claim: _OpenClaim) -> bool:
        """Whether only the cluster itself can have been the cause of the cancellation."""
        return not self._ending and not open_claim.lost

    def _renew(self) -> None:
        """Renew all claims, in the thread of the heartbeat."""
        for open_claim in list(self._open):
            claim, commit = open_claim.claim, open_claim.commit
            if commit is not None and not commit.done():
                continue  # the commit's reply shows whether the claim is held
            try:
                held = self._store.extend(claim, self._lease_s)
            except StoreUnavailableError:
                return  # the store may return before the claims expire
            except StoreError as error:
                self._failure = error
                return
            if not held:
                self._loop.call_soon_threadsafe(self._on_lost, open_claim, claim)

    def _on_lost(self, open_claim: _OpenClaim, claim: Claim) -> None:
        """Drop the claim, unless the reply was late and its agents are at their next step."""
        if open_claim in self._open and open_claim.claim is claim:
            self._lose(open_claim)

    def _lose(self, open_claim: _OpenClaim) -> None:
        """Cancel work on a claim that was lost to another worker."""
        open_claim.lost = True
        self._open[open_claim].cancel()
