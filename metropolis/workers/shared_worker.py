"""Runs the clusters of a run in this process's memory, on the store's own data.

Claims need no leases, and commits carry no minds: the agents themselves are the minds of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

from metropolis.store.claim import Claim
from metropolis.store.execution import Execution
from metropolis.store.memory import MemoryStore
from metropolis.types import Dispatch
from metropolis.workers.cluster_step import ClusterSteps
from metropolis.workers.invocations import cancelled_from_within
from metropolis.workers.local import LocalWorker

NAME = "local"


class SharedWorker:
    """Runs each ready cluster at once, in a task if a member needs a model."""

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
            state = claim.snapshot.shared_state
            assert state is not None
            cluster = Dispatch(claim.step, claim.agents)
            if not self._local.begins_at_once:
                run = partial(self._local.run, cluster, state, claim.number)
                group.create_task(self._work(claim, run))
                continue
            try:
                begun = self._local.begin(cluster, state, claim.number)
            except BaseException as error:  # noqa: BLE001 -- raised in the task
                group.create_task(self._work(claim, partial(_fail, error)))
                continue
            if begun.is_resolved:
                self._store.commit(claim, begun.execution())
            else:
                task = group.create_task(self._work(claim, partial(self._local.complete, begun)))
                task.add_done_callback(partial(_close, begun))  # perhaps before it has begun

    async def _work(self, claim: Claim, run: Callable[[], Coroutine[Any, Any, Execution]]) -> None:
        try:
            self._store.commit(claim, await run())
        except asyncio.CancelledError:
            if self._ending:
                raise
            raise cancelled_from_within(claim.step, self._names[claim.agents[0]]) from None
        except BaseException:
            self._ending = True
            raise


def _close(begun: ClusterSteps, _: asyncio.Task[None]) -> None:
    begun.close()


async def _fail(error: BaseException) -> Execution:
    raise error
