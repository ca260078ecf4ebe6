"""Calls from synchronous code into async code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def complete(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on `loop`, which is not running, and return its result.

    If another loop runs in this thread, as in a notebook, it uses a separate thread, since a thread
    has at most one running loop.
    """
    if not loop_is_running():
        return loop.run_until_complete(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(loop.run_until_complete, coroutine).result()


async def cancel_all() -> None:
    """Cancel all other tasks of the running loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`; a cancellation of this task waits until it has ended."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def loop_is_running() -> bool:
    """Whether an event loop runs in this thread."""
    return asyncio._get_running_loop() is not None


def idles(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Count how often `loop` was idle since the first call for it.

    Between two different counts every runnable task has run. Loops that are not asyncio's own, such
    as uvloop's, are not counted: the time is returned instead.
    """
    own: Any = loop
    if not isinstance(loop, asyncio.SelectorEventLoop):
        return time.monotonic
    if not isinstance(own._selector.select, _CountedSelect):
        own._selector.select = _CountedSelect(own._selector.select, own._ready)
    select: _CountedSelect = own._selector.select
    return select.idles


class _CountedSelect:
    """Wraps the `select` of a loop's selector; counts the calls at which `ready` is empty.

    The timeout is no indicator: it is also 0 if nothing is ready but a timer is due.
    """

    def __init__(self, select: Callable[[float | None], Any], ready: Sized) -> None:
        self._select, self._ready = select, ready
        self._idles = 0

    def __call__(self, timeout: float | None = None) -> Any:
        if not self._ready:
            self._idles += 1
        return self._select(timeout)

    def idles(self) -> float:
        """The count so far."""
        return self._idles
