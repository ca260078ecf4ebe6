"""Async code called from plain code, wherever that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
