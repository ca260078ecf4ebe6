"""A server that sends exactly the given bytes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from types import TracebackType

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
MODELS = b'{"data": [{"id": "tiny", "owned_by": "stub"}]}'

Script = Iterable[bytes | float | None]
"""Bytes are sent, a number is a pause in seconds, None closes the connection."""


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class RawServer:
    """Answers the n-th POST with `script_of(n)`, and GETs (of the models) with `models`."""

    def __init__(
        self,
        script_of: Callable[[int], Script],
        models: Callable[[], Script] = lambda: [answer(MODELS)],
    ) -> None:
        self.script_of, self.models = script_of, models
        self.connections = 0
        self.posts: list[bytes] = []
        self.gets: list[bytes] = []
        self.writers: set[asyncio.StreamWriter] = set()
        self.sent_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def kill(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> RawServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"GET"):
                    self.gets.append(head)
                    await self._play(writer, self.models())
                    continue
                self.posts.append(head + body)
                await self._play(writer, self.script_of(len(self.posts) - 1))
        except (asyncio.IncompleteReadError, ConnectionError, EOFError, asyncio.CancelledError):
            pass  # the last: killed
        finally:
            writer.transport.abort()
            self.writers.discard(writer)
            self._tasks.discard(task)

    async def _play(self, writer: asyncio.StreamWriter, script: Script) -> None:
        for item in script:
            if item is None:
                writer.close()
                raise EOFError
            if isinstance(item, bytes):
                writer.write(item)
                self.sent_bytes += len(item)
                await writer.drain()
            else:
                await asyncio.sleep(item)
