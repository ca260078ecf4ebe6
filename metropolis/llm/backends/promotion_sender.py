"""Promotions of agent-steps at a metropolis gateway, over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from metropolis.llm.backends.http import ABORT_S, JSONServer
from metropolis.llm.base import LLMError, Request
from metropolis.llm.placement import placement_of


class PromotionSender:
    """Sends promotions to the gateway `server` at `path`, in the background."""

    def __init__(self, server: JSONServer, path: str) -> None:
        self._server, self._path = server, path
        self._tasks: set[asyncio.Task[None]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out pending promotions, which belong to this process."""
        return vars(self) | {"_tasks": set()}

    def send(self, request: Request) -> None:
        """See Promoter."""
        task = asyncio.ensure_future(self._send(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Cancel the promotions that are still being sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, request: Request) -> None:
        program = placement_of(request).program
        with suppress(LLMError, TimeoutError):  # the request keeps its rank, and fails by itself
            async with asyncio.timeout(ABORT_S):
                await self._server.send(
                    self._path, {"program": program}, f"the promotion of {request.where}"
                )
