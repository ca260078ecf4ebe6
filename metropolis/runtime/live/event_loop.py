"""The event loop of a run: with a watchdog, and garbage collection tuned for runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import BaseSelector

from metropolis.types import MetropolisError
from metropolis.workers.event_loop import cancel_all
from metropolis.workers.turns import Turns, is_in_turn, noticing_ctrl_c
from metropolis.workers.watchdog import Watchdog

COLLECTED = 50_000, 20, 100
"""Thresholds of Python's garbage collector: a run creates many objects and few cycles, and
collection at the default thresholds takes a fifth of its CPU time."""


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that agents cannot stop: what stops it between two steps would go unnoticed."""

    def stop(self) -> None:
        """Raises MetropolisError in the turn of an agent or a world."""
        if is_in_turn():
            raise MetropolisError("the event loop is stopped; agents should leave it running")
        super().stop()


@contextmanager
def event_loop(
    selector: BaseSelector | None, turns: Turns, stall_s: float
) -> Iterator[tuple[asyncio.AbstractEventLoop, Watchdog]]:
    """A loop for `turns`, observed by a watchdog; at the end it cancels the remaining tasks.

    `stall_s` is Watchdog's.
    """
    loop = _Loop(selector)
    collected = gc.get_threshold()
    with noticing_ctrl_c(), Watchdog(turns, loop, stall_s) as watchdog:
        try:
            gc.set_threshold(*COLLECTED)
            yield loop, watchdog
        finally:
            gc.set_threshold(*collected)
            loop.run_until_complete(cancel_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
