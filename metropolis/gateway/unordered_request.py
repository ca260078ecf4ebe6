"""Unordered requests: each goes to the least busy engine, or another one if that is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from metropolis.gateway.engine_client import Reply
from metropolis.gateway.engine_pool import EnginePool
from metropolis.gateway.errors import EngineLostError
from metropolis.llm.backends.http import NO_JSON

SECRET = re.compile(r"(key|token|password|secret)$|launch_command|ssl_", re.IGNORECASE)
"""Names of settings that are or contain keys."""
NOT_REDACTED = (bool, int, float, type(None))
REDACTED = "<redacted>"


class UnorderedRequest:
    """One request, for any engine that serves `model`, or only for `instance`."""

    def __init__(
        self,
        pool: EnginePool,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        model: str | None = None,
        instance: int | None = None,
    ) -> None:
        self._pool, self._model, self._only = pool, model, instance
        self._method, self._path, self._headers, self._body = method, path, headers, body
        self.instance: int | None = None
        """The engine that has the request."""
        self._call: asyncio.Timeout | None = None

    @asynccontextmanager
    async def reply(self) -> AsyncIterator[Reply]:
        """Yield an engine's answer; raises EngineLostError when no engine answers."""
        tried: set[int] = set()
        while True:
            self.instance = instance = self._choose(tried)
            tried.add(instance)
            engine = self._pool.engines[instance]
            self._pool.unordered[instance] += 1
            try:
                try:
                    async with asyncio.timeout(None) as self._call:
                        reply = await engine.send(
                            self._method, self._path, self._headers, self._body
                        )
                except TimeoutError:
                    continue  # `move_from` cancelled it: the engine is known to hang
                except EngineLostError as error:
                    self._pool.suspect(instance, error)
                    continue
                finally:
                    self._call = None
                try:
                    yield reply
                finally:
                    reply.close()
                return
            finally:
                self._pool.unordered[instance] -= 1

    def move_from(self, instance: int) -> None:
        """Retry on another engine if `instance`, which hangs, has the request."""
        if instance == self.instance and self._call is not None:
            self._call.reschedule(0.0)
            self._call = None

    def _choose(self, tried: set[int]) -> int:
        scheduling, unordered = self._pool.scheduling, self._pool.unordered
        if self._only is not None:
            if not scheduling.is_up[self._only] or self._only in tried:
                raise self._pool.response_lost(self._only)
            return self._only
        is_up = scheduling.is_up
        up = [each for each in self._pool.serving(self._model) if is_up[each] and each not in tried]
        if not up:
            what = "no engine" if self._model is None else "no engine that serves the model"
            raise EngineLostError(f"{what} answers")
        return min(up, key=lambda each: scheduling.in_flight[each] + unordered[each])


def redacted(info: bytes) -> bytes:
    """Return an engine's settings without its keys; {} if `info` is no JSON object."""
    try:
        settings = msgspec.json.decode(info, type=dict[str, Any])
        return msgspec.json.encode(_redacted(settings))
    except NO_JSON:
        return b"{}"


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _setting(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_redacted(each) for each in value]
    return value


def _setting(name: str, value: Any) -> Any:
    if SECRET.search(name) and not isinstance(value, NOT_REDACTED):
        return REDACTED
    return _redacted(value)
