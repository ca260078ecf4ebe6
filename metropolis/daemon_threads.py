"""Threads without a limit, which do not keep the process alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads(Executor):
    """An unbounded executor that reuses idle threads.

    `concurrent.futures.ThreadPoolExecutor` waits for its threads when the interpreter exits.
    """

    def __init__(self, name: str) -> None:
        """`name` begins the names of the threads."""
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._threads = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """See Executor; call it from one thread only."""
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:  # noqa: BLE001 -- raised at the await
                future.set_exception(error)

        self._work.put(work)
        if not self._idle.acquire(blocking=False):
            self._threads += 1
            name = f"{self._name} {self._threads}"
            Thread(target=_run, args=(self._work, self._idle), name=name, daemon=True).start()
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`; like `asyncio.to_thread`, whose threads are few."""
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self, context.run, call)

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Let the threads end once they are idle; does not wait. A later call starts new ones."""
        for _ in range(self._threads):
            self._work.put(None)
        self._begin()


def _run(queue: SimpleQueue[Callable[[], None] | None], idle: Semaphore) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # free its references
        idle.release()
