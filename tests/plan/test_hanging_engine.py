"""When an engine counts as hanging, with all times a hundredth of the real ones."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from metropolis.llm.backends import http
from metropolis.plan.running import engine as engine_module
from metropolis.plan.running.engine import Engine
from metropolis.plan.running.engine_command import EngineCommand

MODELS = b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"data":[{"id":"any"}]}'
HANG_S = engine_module.HANG_S / 100


@pytest.fixture(autouse=True)
def _hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROBE_S", "RESPONSE_S", "HANG_S", "STOP_S"):
        monkeypatch.setattr(engine_module, name, getattr(engine_module, name) / 100)
    monkeypatch.setattr(http, "CHECK_S", http.CHECK_S / 100)


def engine_at(port: int, folder: Path) -> Engine:
    """An engine whose process does nothing; the test answers at the port."""
    command = EngineCommand("any", "sleep {port}", "any")
    return Engine(command, port, (0,), folder / "log", answer_s=9)


def test_an_engine_that_accepts_connections_and_does_not_respond_hangs(tmp_path: Path) -> None:
    """As a stopped process does: its connections are accepted by the system."""

    async def wait(port: int) -> None:
        engine = engine_at(port, tmp_path)
        try:
            async with asyncio.timeout(4 * HANG_S):
                await engine.hangs()
        finally:
            await engine.stop()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(wait(silent.getsockname()[1]))


def test_a_pause_of_the_command_is_no_hang(tmp_path: Path) -> None:
    """A stopped command (Ctrl-Z) asks no engine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            if await reader.readuntil(b"\r\n\r\n"):
                writer.write(MODELS)

    async def wait() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        engine = engine_at(server.sockets[0].getsockname()[1], tmp_path)
        hangs = asyncio.ensure_future(engine.hangs())
        try:
            await asyncio.sleep(HANG_S / 8)
            time.sleep(1.5 * HANG_S)
            await asyncio.sleep(HANG_S / 4)
            assert not hangs.done()
        finally:
            hangs.cancel()
            server.close()
            await engine.stop()

    asyncio.run(wait())
