"""Threads for calls of a store that wait, so that they hold up no other thread's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
WAITS_MAX = 1024
"""Waits at the same time: one of each worker in the process, and one of the controller."""


class WaitingThreads:
    """Runs each call in a thread of its own.

    The threads of `asyncio.to_thread` are few: with as many waits no commit would be written.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, run in a thread."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(WAITS_MAX, "metropolis-wait")
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._threads, context.run, call)

    def close(self) -> None:
        """End the threads, each after its call; the next call makes new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
