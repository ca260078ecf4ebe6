"""The event loop of a run: watched, and collecting garbage as a run's objects need it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import BaseSelector

from metropolis.workers.event_loop import cancel_all
from metropolis.workers.turns import Turns, noticing_ctrl_c
from metropolis.workers.watchdog import Watchdog

COLLECTED = 50_000, 20, 100
"""Thresholds of Python's garbage collector: a run makes many objects and few cycles, and looking
for these as often as usual costs a fifth of its CPU time."""


@contextmanager
def event_loop(
    selector: BaseSelector | None, turns: Turns, stall_s: float
) -> Iterator[tuple[asyncio.AbstractEventLoop, Watchdog]]:
    """A loop for `turns`, which a watchdog looks at; what still runs there at the end is cancelled.

    `stall_s` is what Watchdog takes.
    """
    loop = asyncio.SelectorEventLoop(selector)
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
