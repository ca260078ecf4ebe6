"""Main loop of a run: reads the workers' commits from the store in batches, and dispatches clusters
in reply. The controller is an index over the store's data, rebuilt at each start.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, ParamSpec, TypeVar

import numpy as np

from metropolis.controller.base import NO_AGENT, Controller
from metropolis.rules.rules import ROUNDING
from metropolis.runtime.live.recorded_timeline import RecordedTimeline
from metropolis.runtime.live.worker_pool import WorkerPool
from metropolis.store.base import Acknowledged, Nodes, Store, StoreError, StoreUnavailableError
from metropolis.store.claim import Lookahead, cluster_id
from metropolis.store.execution import Execution
from metropolis.types import AgentId, Commit, Dispatch, MetropolisError, Position, Step
from metropolis.workers.leases import Heartbeat, retry, retry_async
from metropolis.world.entities import Entity, Event
from metropolis.world.user_errors import single_error

P = ParamSpec("P")
T = TypeVar("T")

LEASE_S = 10.0
WAIT_S = 0.25
"""Longest delay of an interrupt."""
RENEW_STEPS = 2
"""Renew a lookahead this many steps before its end: the last commit but one returns the new one."""
RELEASE_S = 0.25
"""Interval at which recorded data is dropped from a store that others share."""
_UNREPORTED = NO_AGENT - 1


class Executor:
    """Runs the clusters that a controller dispatches, by `worker_pool`, on a store's data.

    It is the source of a `Checkpointer`.
    """

    def __init__(
        self,
        controller_of: Callable[[Nodes], Controller],
        store: Store,
        worker_pool: WorkerPool,
        on_commit: Callable[[Execution], None],
        *,
        last_step: Step,
        max_velocity: float,
        lease_s: float = LEASE_S,
        timeline: RecordedTimeline | None = None,
    ) -> None:
        """Acquires the lease of the run; `controller_of` makes the controller for its nodes.

        Raises StoreError if another holder keeps the lease, and then closes `worker_pool`.
        """
        self._worker_pool, self._on_commit = worker_pool, on_commit
        self._max_velocity, self._timeline = max_velocity, timeline
        self._store, self._names, self._lease_s = store, store.info().agents, lease_s
        self._async_store = store.async_store()
        with ExitStack() as if_it_fails:
            if_it_fails.callback(worker_pool.close)
            self._fence = _acquire_lease(store, lease_s)
            if_it_fails.callback(store.release_lease, self._fence)
            retry(store.set_last_step, self._fence, last_step)
            self._nodes = retry(store.nodes)
            # Raises if agents are at different steps in lockstep.
            self._controller = controller_of(self._nodes)
            if_it_fails.pop_all()
        self._positions: list[Position] = list(self._nodes.positions)
        self._last_id = self._nodes.last_id
        self._outstanding: dict[str, Dispatch] = {}
        """Clusters that are dispatched and not acknowledged."""
        self._clear_until: dict[AgentId, Step] = {}
        """The lookahead reported to the store."""
        self._tasks: list[asyncio.Task[None]] = []
        self.reported_floor: Step = 0
        """The floor as last reported to the store."""
        self.newest_step = max(self._nodes.steps)
        """The greatest step that an agent is known to have reached."""
        self._blocked_by = np.full(len(self._names), _UNREPORTED, np.int32)
        """(agents,): the agent that each waits for, as reported to the store."""
        self._lease = ExitStack()
        self._released_wall_s = self._active_wall_s = self._renewed_wall_s = time.monotonic()
        """Times of the last release of recorded data, of the last acknowledgement or dispatch, and
        of the last renewal of the lease."""
        self.failure: BaseException | None = None
        """The reason for a premature end of the run."""

    async def start(self, recorded: Step) -> None:
        """Start the workers; await it once. All steps below `recorded` are recorded."""
        self._lease.enter_context(Heartbeat(self._lease_s, self._renew))
        if self._nodes.released != recorded:
            self.end(StoreError("another driver has continued the run; resume it again"))
            return
        known = [
            one.execution
            for one in self._stored_acknowledgements()
            if one.execution.step >= recorded
        ]
        agent_steps = sum(len(execution.agents) for execution in known)
        # e.g. after a commit that the server refused half way, for a change of permissions
        if agent_steps < sum(step - recorded for step in self._nodes.steps):
            self.end(
                StoreError(
                    f"the store lacks some of the run's commits since step {recorded}; resume it "
                    "with store memory, from its last checkpoint"
                )
            )
            return
        for execution in known:
            self._on_commit(execution)
            if self._timeline is not None:
                self._timeline.restore(execution)
        ready = self._controller.start()
        self._outstanding = {cluster_id(one): one for one in ready}
        if self._timeline is not None:
            self._timeline.dispatched(ready)
        await self._dispatch(ready, self._lookahead(ready))
        for worker in self._worker_pool.start():
            task = asyncio.get_running_loop().create_task(worker)
            task.add_done_callback(self._worker_ended)
            self._tasks.append(task)

    @property
    def floor(self) -> Step:
        """The smallest step any agent still has to run."""
        return self._controller.floor

    @property
    def agents(self) -> int:
        """The number of agents."""
        return len(self._names)

    @property
    def running(self) -> int:
        """The number of agents whose step may run and is not known to be committed.

        May be called from any thread.
        """
        return sum(len(cluster.agents) for cluster in list(self._outstanding.values()))

    async def advance(self) -> None:
        """Wait until the floor has risen, everything is finished, or something failed."""
        before = self._controller.floor
        while (
            self.failure is None
            and self._controller.floor == before
            and not self._controller.finished
        ):
            try:
                acknowledged = await self._unless_ended(
                    self._async_store.acknowledgements, self._last_id, WAIT_S
                )
                # this process was suspended
                if time.monotonic() - self._renewed_wall_s > self._lease_s:
                    self.check_lease()
                if acknowledged is not None:
                    await self._commit(acknowledged)
            except MetropolisError as failure:
                self.end(failure)

    def collect(self) -> None:
        """Drop the data below the floor from the store: it is recorded."""
        now_wall_s = time.monotonic()
        early = now_wall_s - self._released_wall_s < RELEASE_S
        if early and not (self._worker_pool.shared or self._controller.finished):
            return
        self._released_wall_s = now_wall_s
        try:
            if self.failure is None:
                retry(self._store.collect, self._fence, self._controller.floor)
            else:  # the store may be away
                self._store.collect(self._fence, self._controller.floor)
        except StoreError as failure:
            self.end(failure)

    def check_lease(self) -> None:
        """Raise StoreError if another process has taken the run: what was read may be its own."""
        retry(self._renew_lease)

    def keep_minds(self, step: Step) -> bool:
        """See Store.keep_minds."""
        return retry(self._store.keep_minds, self._fence, step)

    def kept_minds(self) -> Mapping[AgentId, Any]:
        """See Store.kept_minds."""
        return retry(self._store.kept_minds)

    def minds(self) -> Mapping[AgentId, Any]:
        """The minds of all agents as of their last commits."""
        return retry(self._store.minds, range(len(self._names)))

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """See Store.world."""
        return retry(self._store.world, step)

    def end(self, reason: BaseException) -> None:
        """End the run for `reason`, unless it has ended; from any thread."""
        self.failure = self.failure or reason
        self._async_store.interrupt()

    async def stop(self) -> None:
        """Make workers give back their claims, and let others take the run."""
        self.end(asyncio.CancelledError())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._async_store.close()
        self._worker_pool.close()
        self._lease.close()
        with suppress(StoreError):  # the lease expires anyway
            self._store.release_lease(self._fence)

    def _stored_acknowledgements(self) -> list[Acknowledged]:
        """The stored acknowledgements that `nodes` includes."""
        found: list[Acknowledged] = []
        after = "0"
        while after != self._last_id:
            batch = retry(self._store.acknowledgements, after, 0.0)
            if not batch:
                break
            for one in batch:
                found.append(one)
                after = one.id
                if after == self._last_id:
                    break
        return found

    async def _commit(self, acknowledged: Sequence[Acknowledged]) -> None:
        if self._timeline is not None:
            self._timeline.committed(acknowledged)
            self._timeline.advance()
        if not acknowledged:
            # a server that was restarted may have lost them
            if time.monotonic() - self._active_wall_s > self._lease_s:
                await self._dispatch([*self._outstanding.values()], {})
            return
        self._last_id = acknowledged[-1].id
        self._active_wall_s = time.monotonic()
        commits, committed, dispatched = [], set(), set()
        positions, names = self._positions, self._names
        for one in acknowledged:
            execution = one.execution
            agents, writes = execution.agents, execution.writes
            name = cluster_id(execution)
            committed.add(name)
            if one.continues:
                dispatched.add(cluster_id(Dispatch(execution.step + 1, agents)))
            self._outstanding.pop(name, None)
            if execution.step >= self.newest_step:
                self.newest_step = execution.step + 1
            if writes:
                for agent in agents:
                    body = writes.get(names[agent])
                    if body is not None:
                        positions[agent] = body.position
            commits.append(Commit(agents, tuple([positions[agent] for agent in agents])))
            self._on_commit(execution)
        ready = {cluster_id(one): one for one in self._controller.handle(commits)}
        for name in committed & ready.keys():  # their worker continues by itself
            del ready[name]
        self._outstanding |= ready
        clusters = [one for name, one in ready.items() if name not in dispatched]
        if self._timeline is not None:
            self._timeline.dispatched(clusters, self._blocked_by)
        await self._dispatch(clusters, self._lookahead(ready.values()))

    async def _dispatch(
        self, clusters: Sequence[Dispatch], ahead: Mapping[AgentId, Lookahead]
    ) -> None:
        """Report changes to the store: ready clusters, blocking edges, and the floor."""
        self._active_wall_s = time.monotonic()
        edges, floor = self._changed_edges(), self._controller.floor
        if self._timeline is not None:
            self._timeline.waiting(edges)
        if clusters or ahead or edges or floor != self.reported_floor:
            self.reported_floor = floor
            await self._unless_ended(
                self._async_store.dispatch, self._fence, clusters, edges, floor, ahead
            )

    async def _unless_ended(
        self, call: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs
    ) -> T | None:
        """`retry_async` until the run ends; then None."""

        async def attempt() -> T | None:
            return None if self.failure is not None else await call(*arguments, **options)

        return await retry_async(attempt)

    def _lookahead(self, ready: Iterable[Dispatch]) -> dict[AgentId, Lookahead]:
        """Lookahead of single agents that exceeds the known one, or must be renewed now."""
        if self._worker_pool.shared:
            return {}
        found = {}
        for step, (agent, *others) in ((one.step, one.agents) for one in ready):
            known = self._clear_until.get(agent, 0)
            if others or known > step + RENEW_STEPS:
                continue
            until = self._controller.clear_until(agent)
            if until > max(known, step + 1):
                far = (until - 1 - step) * self._max_velocity + ROUNDING
                found[agent] = Lookahead(until, self._positions[agent], far)
                self._clear_until[agent] = until
        return found

    def _changed_edges(self) -> dict[AgentId, AgentId | None]:
        before, self._blocked_by = self._blocked_by, self._controller.blocked_by()
        (changed,) = (self._blocked_by != before).nonzero()
        if not changed.size:
            return {}
        blockers = self._blocked_by[changed].tolist()
        return {
            agent: None if blocker == NO_AGENT else blocker
            for agent, blocker in zip(changed.tolist(), blockers, strict=True)
        }

    def _renew_lease(self) -> None:
        self._store.renew_lease(self._fence, self._lease_s)
        self._renewed_wall_s = time.monotonic()

    def _renew(self) -> None:
        """Renew the lease, in the thread of the heartbeat."""
        try:
            self._renew_lease()
        except StoreUnavailableError:
            return  # the store may return before the lease expires
        except StoreError as failure:
            self.end(failure)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        """End the run if a worker has failed; otherwise it ended with the run."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.end(single_error(failure))


def _acquire_lease(store: Store, lease_s: float) -> int:
    """Return the fence; waits until the lease of a killed holder expires."""
    holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
    deadline_s = time.monotonic() + 1.2 * lease_s
    while True:
        try:
            return retry(store.take_lease, holder, lease_s)
        except StoreUnavailableError:
            raise
        except StoreError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(lease_s / 20)
