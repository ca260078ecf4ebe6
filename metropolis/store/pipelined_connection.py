"""One connection to Redis for the coroutines of an event loop.

Commands of one iteration of the loop are sent together, and replies arrive in the order of the
commands: many calls cost one round trip, and one write of the server's append-only file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import redis
from hiredis import pack_command
from redis.asyncio import ConnectionPool

from metropolis.store.connect import TIMEOUT_S, connection_options

_WATCH_S = 1.0
"""Interval of checks for a silent server."""
CLOSE_S = 1.0
Reply = asyncio.Future[Any]


class PipelinedConnection:
    """Connects on the first command; after a failure, reconnects on the next one."""

    def __init__(self, url: str) -> None:
        self._pool: Any = ConnectionPool.from_url(url, **connection_options(url))
        self._pool.connection_kwargs["socket_timeout"] = None  # replies may wait: see _watch
        self._unsent: list[tuple[tuple[Any, ...], Reply]] = []
        self._sent: deque[Reply] = deque()
        self._more = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no reply is pending."""
        return not self._sent and not self._unsent

    async def ask(self, *command: Any) -> Any:
        """Return the reply to `command`; raises redis-py's exceptions."""
        loop = asyncio.get_running_loop()
        reply: Reply = loop.create_future()
        self._unsent.append((command, reply))
        self._more.set()
        if self._serving is None:
            self._serving = loop.create_task(self._serve())
        return await reply

    async def close(self) -> None:
        """Close the connection, after the pending commands; those that take long fail."""
        serving, pending = self._serving, [*self._sent, *(reply for _, reply in self._unsent)]
        if serving is None:
            return
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_S)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self) -> None:
        """Run until the connection ends; then fail all pending replies."""
        connection = self._pool.make_connection()
        failure: Exception = redis.ConnectionError("the connection was closed")
        tasks: list[asyncio.Task[None]] = []
        try:
            await _connect(connection)
            coroutines = self._send(connection), self._receive(connection), self._watch()
            tasks += [asyncio.ensure_future(coroutine) for coroutine in coroutines]
            await asyncio.gather(*tasks)
        except redis.RedisError as error:
            failure = error
        finally:
            for task in tasks:
                task.cancel()
            self._serving = None
            waiting = [*self._sent, *(reply for _, reply in self._unsent)]
            self._sent.clear()
            self._unsent.clear()
            for reply in waiting:
                if not reply.done():
                    reply.set_exception(failure)
            await connection.disconnect(nowait=True)

    async def _send(self, connection: Any) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            unsent, self._unsent = self._unsent, []
            self._sent += [reply for _, reply in unsent]
            packed = b"".join([pack_command(command) for command, _ in unsent])
            await connection.send_packed_command(packed, check_health=False)

    async def _receive(self, connection: Any) -> None:
        while True:
            try:
                reply = await connection.read_response(disable_decoding=True)
            except redis.ResponseError as refused:
                reply = refused
            answered = self._sent.popleft()
            if answered.cancelled():
                continue
            if isinstance(reply, Exception):
                answered.set_exception(reply)
            else:
                answered.set_result(reply)

    async def _watch(self) -> None:
        """Raise TimeoutError if a reply is overdue."""
        oldest, silent_s = None, 0.0
        while True:
            await asyncio.sleep(_WATCH_S)
            first = self._sent[0] if self._sent else None
            silent_s = silent_s + _WATCH_S if first is oldest is not None else 0.0
            oldest = first
            if silent_s > TIMEOUT_S:
                raise _silent()


async def _connect(connection: Any) -> None:
    """Connect; raises TimeoutError if the server, or a part of the network, accepts in silence."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await connection.connect()
    except TimeoutError:
        raise _silent() from None


def _silent() -> redis.TimeoutError:
    return redis.TimeoutError(f"the server has been silent for {TIMEOUT_S:g} s")
