"""The connection pool of one server."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import SplitResult

from metropolis.llm.backends.connection import (
    LIMITS,
    Address,
    AnswerLimits,
    BrokenAnswerError,
    Connection,
    connect,
    connect_to,
)

CONNECT_S = 10.0
"""Time limit of a new connection."""
END_S = 1.0
"""Time for the end of a stream after its last event."""


class Connections:
    """Connections to the server at `url`, whose answers stay within `limits`."""

    def __init__(self, url: SplitResult, limits: AnswerLimits = LIMITS) -> None:
        self.limits = limits
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._is_tls = url.scheme == "https"
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out connections and TLS state, which belong to this process."""
        return {name: value for name, value in vars(self).items() if name not in PROCESS_LOCAL}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without connections in another process."""
        vars(self).update(state)
        self._reset()

    def _reset(self) -> None:
        self._tls: ssl.SSLContext | None = ssl.create_default_context() if self._is_tls else None
        self._idle: list[Connection] = []
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks that read the ends of answers."""
        self._address: Address | None = None
        """Address of the first connection; the name is resolved once."""

    async def take(self, *, fresh: bool = False) -> Connection:
        """An idle connection, unless `fresh`, or a new one.

        Raises OSError within CONNECT_S seconds.
        """
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._address is None:
                    connection = await connect(self._host, self._port, self._tls, self.limits)
                else:
                    connection = await connect_to(self._address, self._tls, self._host, self.limits)
        except TimeoutError:
            self._address = None
            raise ConnectionError(f"no connection within {CONNECT_S:g} s") from None
        except OSError:
            self._address = None  # the server may have moved
            raise
        self._address = connection.address
        return connection

    def put_back(self, connection: Connection) -> None:
        """Keep `connection` if it is reusable, or will be at once; else close it."""
        if connection.reusable:
            self._idle.append(connection)
        elif connection.is_ending:
            task = asyncio.get_running_loop().create_task(self._read_end(connection))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        else:
            connection.close()

    async def close(self) -> None:
        """Close the connections that are not in use."""
        ending = list(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        while self._idle:
            self._idle.pop().close()

    async def _read_end(self, connection: Connection) -> None:
        """A server that sees its stream closed before the end takes it for abandoned."""
        try:
            async with asyncio.timeout(END_S):
                async for _ in connection.chunks():
                    pass
        except (TimeoutError, OSError, BrokenAnswerError):
            return
        finally:
            connection.is_ending = False
            self.put_back(connection)


PROCESS_LOCAL = ("_tls", "_idle", "_address", "_ending")
"""Attributes that are not pickled."""
