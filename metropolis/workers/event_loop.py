"""Async code called from plain code, wherever that runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def complete(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """What `coroutine` returns, run on `loop`, which is not running.

    In a notebook another loop runs in this thread, and a thread has one at most: then in a thread
    of its own.
    """
    if asyncio._get_running_loop() is None:
        return loop.run_until_complete(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(loop.run_until_complete, coroutine).result()


async def cancel_all() -> None:
    """End all other tasks of the running loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def loop_is_running() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def idles(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """How often `loop` has had nothing to do, counted from the first call with it.

    Between two counts every task that could go on has done so. Loops that are not asyncio's own,
    such as uvloop's, are not counted: then the time.
    """
    own: Any = loop
    if not isinstance(loop, asyncio.SelectorEventLoop):
        return time.monotonic
    if not isinstance(own._selector.select, _CountedSelect):
        own._selector.select = _CountedSelect(own._selector.select, own._ready)
    select: _CountedSelect = own._selector.select
    return select.idles


class _CountedSelect:
    """The `select` of a loop's selector, which counts how often nothing is `ready` before it.

    Its timeout does not tell: it is 0 also if nothing is ready but a timer is due.
    """

    def __init__(self, select: Callable[[float | None], Any], ready: Sized) -> None:
        self._select, self._ready = select, ready
        self._idles = 0

    def __call__(self, timeout: float | None = None) -> Any:
        if not self._ready:
            self._idles += 1
        return self._select(timeout)

    def idles(self) -> float:
        """So far."""
        return self._idles
