"""Renewal of leases beside the event loop, and retries of store calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event, Thread
from typing import ParamSpec, TypeVar

from metropolis.store.base import StoreUnavailableError

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a store may be unavailable; a server that loads its append-only file needs time."""
PAUSE_S = 0.1
BEATS = 3
"""The number of renewals in the duration of a lease."""


class Heartbeat:
    """Calls `beat` BEATS times per lease, in a thread, since agents may block the event loop."""

    def __init__(self, lease_s: float, beat: Callable[[], None]) -> None:
        self._every_s, self._beat = lease_s / BEATS, beat
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._beat()


async def retry_async(
    call: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs
) -> T:
    """The coroutine version of `retry`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call(*arguments, **options)
        except StoreUnavailableError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(PAUSE_S)


def retry(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Return what `call` returns; repeat it for PATIENCE_S while the store is unavailable."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*arguments, **options)
        except StoreUnavailableError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)
