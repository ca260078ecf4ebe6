"""Clusters claimed from a store, run in this process, and committed there.

Many claims are open at once, so that the waiting for language models overlaps. What makes it safe
to kill: a claim runs out unless its worker renews it, and a cluster is committed once. What a
worker knows of an agent's mind counts only as long as it has committed the agent's last step; the
store tells with each claim whose mind that is not so of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from metropolis.store.base import Claim, Store, StoreError
from metropolis.types import Dispatch, MetropolisError
from metropolis.workers.answers import StoredAnswers
from metropolis.workers.leases import Pulse, patiently
from metropolis.workers.local import LocalWorker
from metropolis.world.base import Agent, World
from metropolis.world.saving import restore, save

T = TypeVar("T")

CLAIMS_MAX = 256
WAIT_S = 0.25
"""How long a worker that ends may wait for the claim it has asked for last."""
_THREADS = 4
"""Calls to the store at once."""


@dataclass(eq=False)
class _Open:
    claim: Claim
    task: asyncio.Task[None]
    lost: bool = False
    """Somebody else has it, or nobody: what is done for it here counts no more."""


class ClaimingWorker:
    """Runs clusters of a stored run in the order of their steps.

    `name` is unique to this object: the store believes that it remembers what it has committed.
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
        """`agents` belong to this worker, and are those of `local`.

        `answers` is the journal of the client that they ask.
        """
        self.name = name
        self._store, self._world, self._agents = store, world, agents
        self._local, self._answers, self._lease_s = local, answers, lease_s
        self._free = asyncio.Semaphore(claims_max)
        self._open: set[_Open] = set()
        self._threads = ThreadPoolExecutor(_THREADS)
        self._ending = False

    async def run(self) -> None:
        """Until it is cancelled, or a cluster fails; what is open then is given back."""
        self._loop = asyncio.get_running_loop()
        try:
            with Pulse(self._lease_s, self._renew):
                async with asyncio.TaskGroup() as group:
                    while True:
                        await self._free.acquire()
                        await self._begin(group)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._threads.shutdown(wait=False)
            self._local.close()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        """The next cluster, if there is one soon."""
        asked = self._loop.run_in_executor(
            self._threads, patiently, self._store.claim, self.name, self._lease_s, WAIT_S
        )
        try:
            claim = await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._ending = True
            if (claim := await asked) is not None:
                self._give_back(claim)
            raise
        if claim is None:
            self._free.release()
            return
        await self._leave(claim)
        opened = _Open(claim, group.create_task(self._work(claim)))
        self._open.add(opened)
        self._answers.take(claim.agents, claim.answers)
        opened.task.add_done_callback(lambda _: self._finish(opened))

    def _finish(self, opened: _Open) -> None:
        self._open.discard(opened)
        self._answers.forget(opened.claim.agents)
        self._free.release()

    async def _leave(self, claim: Claim) -> None:
        """Stop what still runs for members of `claim`: those claims have run out."""
        members = set(claim.agents)
        earlier = [opened for opened in self._open if members & set(opened.claim.agents)]
        for opened in earlier:
            self._lose(opened)
        await asyncio.gather(*(opened.task for opened in earlier), return_exceptions=True)

    async def _work(self, claim: Claim) -> None:
        try:
            for agent, mind in claim.minds.items():
                restore(self._agents[agent], mind)
            state = claim.slice.state(self._world.metric, self._world.perception_radius)
            outcome = await self._local.run(Dispatch(claim.step, claim.agents), state)
            minds = {agent: save(self._agents[agent]) for agent in claim.agents}
            await self._in_thread(lambda: self._store.commit(claim, outcome, minds))
        except asyncio.CancelledError:
            self._give_back(claim)
            if self._is_ours(claim):
                raise MetropolisError(
                    f"step {claim.step}, agent {self._agents[claim.agents[0]].name!r} or its "
                    "cluster: a task was cancelled from within; who cancels one should catch its "
                    "CancelledError"
                ) from None
            raise
        except BaseException:
            self._ending = True  # what else is cancelled now is so for this failure
            self._give_back(claim)
            raise

    def _is_ours(self, claim: Claim) -> bool:
        """Whether nobody but the cluster itself can have cancelled it."""
        return not self._ending and not any(
            opened.lost for opened in self._open if opened.claim is claim
        )

    def _give_back(self, claim: Claim) -> None:
        with suppress(StoreError):  # it runs out by itself
            self._store.give_back(claim)

    def _renew(self) -> None:
        """In the thread of the pulse."""
        for opened in list(self._open):
            try:
                held = self._store.extend(opened.claim, self._lease_s)
            except StoreError:
                return  # whatever it is, the next claim or commit meets it, too
            if not held:
                self._loop.call_soon_threadsafe(self._lose, opened)

    def _lose(self, opened: _Open) -> None:
        """Drop what somebody else does; nothing happens when it is committed already."""
        if opened not in self._open:  # the answer was late: its agents may be at their next step
            return
        opened.lost = True
        opened.task.cancel()
        for agent in opened.claim.agents:  # a plain one may go on in its thread, to no effect
            self._agents[agent] = copy(self._agents[agent])

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, patiently, call)
