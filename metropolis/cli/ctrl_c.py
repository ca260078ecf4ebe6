"""The end of a run or a server by Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STATUS_INTERRUPTED = 130
SHOW_CURSOR = b"\x1b[?25h\n"
"""Shows the cursor that the progress bar hides."""


@contextmanager
def ended_by_ctrl_c(finish: Callable[[], object]) -> Iterator[None]:
    """Call `finish` at the first Ctrl-C or SIGTERM; a second one ends the process like kill -9.

    An exception could not end an agent that catches all exceptions, nor a thread.
    """

    def end(_signal: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, _end_at_once)
        finish()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def signalled() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    received = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received.set)
    await received.wait()


def _end_at_once(_signal: int, _frame: FrameType | None) -> None:
    if sys.stderr.isatty():
        os.write(2, SHOW_CURSOR)
    os._exit(STATUS_INTERRUPTED)
