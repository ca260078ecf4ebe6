"""What holders of leases need: a pulse beside the event loop, and patience with a store."""

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
"""How long a store may be away; a server that reads its append-only file takes its time."""
PAUSE_S = 0.1
BEATS = 3
"""So often within a lease it is renewed."""


class Pulse:
    """Calls `beat` BEATS times per lease, in a thread: agents may keep the event loop busy."""

    def __init__(self, lease_s: float, beat: Callable[[], None]) -> None:
        self._every_s, self._beat = lease_s / BEATS, beat
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pulse:
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
    """The same as `retry`, for coroutines."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call(*arguments, **options)
        except StoreUnavailableError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(PAUSE_S)


def retry(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """What `call` returns; while the store does not answer it is asked again, for PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*arguments, **options)
        except StoreUnavailableError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)
