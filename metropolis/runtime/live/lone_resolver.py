"""What the world makes of the action of one member of a cluster, without the others.

Dependencies by value need it: a change that one action makes alone depends on its agent only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from metropolis.sim.virtual import IdleSelector
from metropolis.types import Step
from metropolis.workers.cluster_step import copied
from metropolis.world.base import World
from metropolis.world.state import State
from metropolis.world.transaction import Transaction

CANCELLATIONS_MAX = 3
"""How often to cancel what a world waits for when it resolves one action alone."""


class LoneResolver:
    """Resolves single actions on an event loop of its own, in which nothing sleeps."""

    def __init__(self, world: World, state: State, seed: int) -> None:
        """`state` is the state at the step to resolve; it is only read."""
        self._world, self._state, self._reach, self._seed = world, state, world.reach, seed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        """The tasks that the current resolution has started."""
        self._resolving: asyncio.Task[None] | None = None
        self._refusals = 0
        """How often the current resolution was cancelled."""

    def resolve(self, step: Step, name: str, action: Any) -> Transaction | None:
        """The world's resolution of one agent's action; None if it needs the other members."""
        asked = False

        async def ask(_name: str, _question: Any) -> Any:
            nonlocal asked
            asked = True
            raise LookupError("the answer is not known")

        actions = {name: copied(action)}
        cluster = Transaction(self._state, self._reach, self._seed, step, actions, ask)
        try:
            self._resolve(cluster)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 -- it needs the others
            return None
        return None if asked else cluster

    def close(self) -> None:
        """Close the event loop."""
        if self._loop is not None:
            self._loop.close()

    def _resolve(self, cluster: Transaction) -> None:
        """Resolve `cluster`; what waits when nothing is left to run waits for other members.

        Raises CancelledError then.
        """
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop(IdleSelector(self._give_up))
            self._loop.set_task_factory(self._task)
        # A plain `resolve` may start tasks. Most return None: to run each within the loop would
        # take twice as long.
        asyncio._set_running_loop(self._loop)
        try:
            resolving = self._world.resolve(cluster)
            asyncio._set_running_loop(None)
            if resolving is not None:
                self._complete(self._loop, resolving)
        finally:
            asyncio._set_running_loop(None)
            if self._tasks:
                self._end_tasks(self._loop)

    def _complete(self, loop: asyncio.AbstractEventLoop, resolving: Awaitable[None]) -> None:
        self._resolving = loop.create_task(asyncio.wait_for(resolving, None))
        self._refusals = 0
        loop.run_until_complete(self._resolving)

    def _end_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.call_soon(loop.stop)
            loop.run_forever()
        self._tasks.clear()

    def _task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._tasks.append(task)
        return task

    def _give_up(self) -> bool:
        self._refusals += 1
        if self._refusals > CANCELLATIONS_MAX:  # the resolution ignores cancellations
            assert self._loop is not None
            self._loop.stop()
        elif self._resolving is not None:
            self._resolving.cancel()
        return True
