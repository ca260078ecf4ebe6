"""Serves sides until the command is ended: `metropolis view`, and the child process of a run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metropolis.types import MetropolisError
from metropolis.viewer.data.opening import open_run
from metropolis.viewer.data.side import Side
from metropolis.viewer.server import ViewerServer


async def serve(sides: Sequence[Side], host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until cancelled; `say` receives the URL. Raises MetropolisError."""
    server = ViewerServer(sides, host=host)
    try:
        say(await server.start(port))
        await asyncio.Event().wait()
    finally:
        await server.close()


async def serve_run(folder: Path) -> None:
    """Serve the run in `folder`, which another process runs; see `RunViewer`.

    Lines of JSON come from standard input: the run's status; the first one says that it has begun,
    and the end that its process has ended. Lines of JSON go to standard output: the URL or an
    error, then commands to the run.
    """
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    status: dict[str, Any] = {}
    if not (first := await lines.readline()):
        return
    status.update(json.loads(first))
    try:
        side = await asyncio.to_thread(open_run, folder)
        server = ViewerServer(
            [side], status=lambda: status, control=lambda command: _send({"command": command})
        )
        url = await server.start(0)
    except MetropolisError as error:
        _send({"error": f"{error}"})
        return
    _send({"url": url})
    try:
        while line := await lines.readline():
            status.update(json.loads(line))
    finally:
        await server.close()


def _send(content: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve_run(Path(sys.argv[1])))
