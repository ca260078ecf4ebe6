"""The event loop of a run: with a watchdog, and memory management tuned for runs."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Generator, Iterator
from contextlib import contextmanager
from selectors import BaseSelector
from typing import Any, TypeVar, cast

from metropolis._core import use_huge_pages
from metropolis.llm.base import BudgetExhausted
from metropolis.llm.followed_tasks import FollowedTask
from metropolis.types import MetropolisError
from metropolis.workers.event_loop import cancel_all
from metropolis.workers.invocations import (
    CtrlC,
    Invocations,
    recording_ctrl_c,
    runs_user_code,
)
from metropolis.workers.watchdog import Watchdog
from metropolis.world.user_errors import describe_error

T = TypeVar("T")

GC_THRESHOLDS = 200_000, 20, 100
"""Thresholds of Python's garbage collector: a run creates many objects and hardly any cycles, and
collection at the default thresholds takes a fifth of its CPU time."""


class RunLoop(asyncio.SelectorEventLoop):
    """An event loop that agents cannot stop: between two steps that would go unnoticed."""

    ctrl_c: CtrlC
    _raised: BaseException | None = None
    """The last Ctrl-C or exit that has left the loop."""

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """See `asyncio.AbstractEventLoop`.

        A Ctrl-C or exit leaves the loop once. asyncio raises it again from each task that it passes
        through, and stops for the future that the loop then ran for: the tidying would end early.
        """
        future = asyncio.ensure_future(cast(Awaitable[T], future), loop=self)
        while True:
            try:
                return super().run_until_complete(future)
            except (KeyboardInterrupt, SystemExit) as error:
                if future.done() or error is not self._raised:
                    self._raised = error
                    raise
            except RuntimeError:
                if future.done() or self._raised is None:
                    raise

    def stop(self) -> None:
        """Raises MetropolisError in the code of an agent or a world."""
        if runs_user_code():
            raise MetropolisError("the event loop is stopped; agents should leave it running")
        super().stop()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that nothing waited for.

        Excludes those of wrong executions, and those because of which the run has ended.
        """
        error, task = context.get("exception"), context.get("future")
        if isinstance(error, BudgetExhausted | KeyboardInterrupt):
            return
        if error is None or not isinstance(task, FollowedTask):
            super().default_exception_handler(context)
            return
        if task.strand.log.is_abandoned:
            return
        sentence = describe_error(error, None)
        sys.stderr.write(f"metropolis: a task that nothing waited for failed: {sentence}\n")


@contextmanager
def event_loop(
    selector: BaseSelector | None, invocations: Invocations, stall_s: float
) -> Iterator[tuple[RunLoop, Watchdog]]:
    """A loop for `invocations`, observed by a watchdog; at the end it cancels the remaining tasks.

    `stall_s` is Watchdog's.
    """
    use_huge_pages()
    loop = RunLoop(selector)
    before, watchdog = gc.get_threshold(), Watchdog(invocations, loop, stall_s)
    with recording_ctrl_c(loop, watchdog.ending) as loop.ctrl_c, watchdog:
        try:
            gc.set_threshold(*GC_THRESHOLDS)
            yield loop, watchdog
        finally:
            loop.ctrl_c.tidy()
            gc.set_threshold(*before)
            loop.run_until_complete(cancel_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
