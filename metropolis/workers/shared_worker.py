"""Runs the clusters of a run in this process's memory, on the store's own data.

Claims need no leases, and commits carry no minds: the agents themselves are the minds of the store.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf

from metropolis.store.claim import Claim
from metropolis.store.memory import MemoryStore
from metropolis.types import Dispatch
from metropolis.workers.invocations import cancelled_from_within
from metropolis.workers.local import LocalWorker

NAME = "local"


class SharedWorker:
    """Runs each ready cluster at once, in a task."""

    def __init__(self, local: LocalWorker, store: MemoryStore) -> None:
        self._local, self._store = local, store
        self._names = store.info().agents
        self._ending = False

    async def run(self) -> None:
        """Run until cancelled or until a cluster fails; running clusters are then cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                start = partial(self._start, group)
                self._store.watch("ready", start)
                start()
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    self._ending = True  # later cancellations are due to this one
                    raise
                finally:
                    self._store.unwatch("ready", start)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _start(self, group: asyncio.TaskGroup) -> None:
        """Run the clusters that are ready, unless the run ends."""
        if self._ending:
            return
        for claim in self._store.claims(NAME, inf, most=len(self._names)):
            group.create_task(self._work(claim))

    async def _work(self, claim: Claim) -> None:
        state = claim.snapshot.shared_state
        assert state is not None
        try:
            cluster = Dispatch(claim.step, claim.agents)
            self._store.commit(claim, await self._local.run(cluster, state, claim.number))
        except asyncio.CancelledError:
            if self._ending:
                raise
            raise cancelled_from_within(claim.step, self._names[claim.agents[0]]) from None
        except BaseException:
            self._ending = True
            raise
