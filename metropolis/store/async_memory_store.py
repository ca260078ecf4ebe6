"""The memory store for an event loop: calls return at once, waits end with the change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.base import Acknowledged, AsyncStore, Store
from metropolis.store.claim import NO_LOOKAHEAD, Claim, Lookahead
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.types import AgentId, Dispatch, Step

T = TypeVar("T")
Watch = Callable[[str, Callable[[], None], Callable[[], list[Any]]], list[Any]]
"""See `MemoryStore.watch`."""
Unwatch = Callable[[str, Callable[[], None]], None]
"""See `MemoryStore.unwatch`."""
CHECK_S = 0.25
"""Waits check at this interval whether their time is over and whether leases have expired."""


class AsyncMemoryStore(AsyncStore):
    """See AsyncStore."""

    def __init__(self, store: Store, watch: Watch, unwatch: Unwatch) -> None:
        super().__init__(store)
        self._watch, self._unwatch = watch, unwatch
        self._waits: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._interrupted = False

    async def claims(
        self, worker: str, lease_s: float, wait_s: float, *, most: int, own: bool
    ) -> list[Claim]:
        """See Store."""
        find = partial(self._store.claims, worker, lease_s, most=most, own=own)
        return await self._wait_for("ready", find, wait_s)

    async def keep_answer(self, key: Key, completion: Completion, buyer: str) -> None:
        """See Store."""
        self._store.keep_answer(key, completion, buyer)

    async def commit(
        self,
        claim: Claim,
        execution: Execution,
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        return self._store.commit(claim, execution, answers, buyer, lease_s)

    async def acknowledgements(self, after: str, wait_s: float) -> list[Acknowledged]:
        """See Store."""
        find = partial(self._store.acknowledgements, after, 0.0)
        return await self._wait_for("acknowledged", find, wait_s)

    async def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NO_LOOKAHEAD,
    ) -> None:
        """See Store."""
        self._store.dispatch(fence, clusters, edges, floor, ahead)

    def interrupt(self) -> None:
        """See AsyncStore."""
        self._interrupted = True
        for future, loop in list(self._waits.items()):
            _wake(loop, future)

    async def close(self) -> None:
        """See AsyncStore."""
        if self._timer is not None and not self._waits:  # other workers may use this object
            self._timer.cancel()
            self._timer = None

    async def _wait_for(self, what: str, find: Callable[[], list[T]], wait_s: float) -> list[T]:
        """What `find` finds, now or after a change of `what` within `wait_s`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        while True:
            future = loop.create_future()
            wake = partial(_wake, loop, future)
            found = self._watch(what, wake, find)
            if found:
                return found
            self._waits[future] = loop
            try:
                if self._interrupted or loop.time() >= end_s:
                    return found
                if self._timer is None:
                    self._timer = loop.call_later(min(wait_s, CHECK_S), self._check)
                await future
            finally:
                del self._waits[future]
                self._unwatch(what, wake)

    def _check(self) -> None:
        self._timer = None
        for future, loop in list(self._waits.items()):
            _wake(loop, future)


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """End the wait for `future`, from any thread."""
    if asyncio._get_running_loop() is loop:
        if not future.done():
            future.set_result(None)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_wake, loop, future)
