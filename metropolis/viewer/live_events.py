"""Refreshes the sides while pages watch them, and sends the changes to the pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from metropolis.types import MetropolisError
from metropolis.viewer.data.chunks import json_bytes
from metropolis.viewer.data.side import Side

INTERVAL_S = 1.0
WATCHERS_MAX = 64
QUEUED_MAX = 32
"""Events that a watcher may be behind; then it is dropped, and can connect again."""

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Executes a function in another thread."""


class TooManyWatchersError(MetropolisError):
    """There are `WATCHERS_MAX` already."""


class LiveEvents:
    """Events of `sides`, refreshed by `run`; `status`: that of the run that started the viewer, or
    None if it started alone."""

    def __init__(
        self, sides: Sequence[Side], run: Run, status: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self._sides, self._run, self._status = sides, run, status
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        self._following: asyncio.Task[None] | None = None

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Events as server-sent ones, from the present state on. Raises TooManyWatchersError."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise TooManyWatchersError(f"{WATCHERS_MAX} pages follow already; close one")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED_MAX)
        self._watchers.add(queue)
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            for number in range(len(self._sides)):
                yield self._event(number, {})
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._watchers.discard(queue)
            if not self._watchers:
                await self.close()

    async def catch_up(self, side: Side) -> None:
        """Read what is new on `side` unless it is being followed."""
        if self._following is None:
            await self._run(side.refresh)

    async def close(self) -> None:
        """End all events."""
        for queue in self._watchers:
            _end(queue)
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self) -> None:
        while True:
            for number, side in enumerate(self._sides):
                try:
                    changed = await self._run(side.refresh)
                    event = self._event(number, changed)
                except MetropolisError as error:
                    event = _sent({"side": number, "error": f"{error}"})
                for queue in [*self._watchers]:
                    try:
                        queue.put_nowait(event)
                    except asyncio.QueueFull:  # the watcher does not read
                        self._watchers.discard(queue)
                        _end(queue)
            await asyncio.sleep(INTERVAL_S)

    def _event(self, number: int, changed: Mapping[str, Sequence[int]]) -> bytes:
        side = self._sides[number]
        given = self._status() if number == 0 else None
        status = {"paused": False, "can_control": False, **side.status(), **(given or {})}
        meta = side.growing_meta()
        return _sent({"side": number, "meta": meta, "changed": changed, "status": status})


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(None)


def _sent(content: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % json_bytes(content)
