"""Threads for plain agents; an endless computation does not keep the process alive."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any


class DaemonThreads(Executor):
    """An unbounded executor that reuses idle threads.

    `concurrent.futures.ThreadPoolExecutor` waits for its threads when the interpreter exits.
    """

    def __init__(self) -> None:
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
            Thread(target=self._run, name=f"agents {self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Let the threads end once they are idle; does not wait."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # free its references
            self._idle.release()
