"""The server gives data to those with the token alone; other requests get a sentence."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import aiohttp
import pytest

from metropolis.types import MetropolisError
from metropolis.viewer import live_events
from metropolis.viewer import server as server_module
from metropolis.viewer.access import HEADERS, Access
from metropolis.viewer.data.opening import open_run
from metropolis.viewer.data.side import Side
from metropolis.viewer.page_files import page_files
from metropolis.viewer.server import ViewerServer
from tests.viewer.data.conftest import STEPS, simulation

Request = Callable[..., Awaitable[tuple[int, Any, bytes]]]


def served(
    sides: Sequence[Side], use: Callable[[ViewerServer, Request], Awaitable[None]], **options: Any
) -> None:
    """Run `use(server, request)` while the sides are served."""

    async def run() -> None:
        server = ViewerServer(sides, **options)
        url, _, token = (await server.start(0)).partition("/#token=")
        assert token == server.access.token
        async with aiohttp.ClientSession(url, auto_decompress=False) as client:

            async def request(
                path: str, method: str = "GET", *, token: str | None = token, **headers: str
            ) -> tuple[int, Any, bytes]:
                given = {} if token is None else {"Authorization": f"Bearer {token}"}
                given |= {name.replace("_", "-"): value for name, value in headers.items()}
                async with client.request(method, path, headers=given) as response:
                    return response.status, response.headers, await response.read()

            try:
                await use(server, request)
            finally:
                await server.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_page_and_chunks(shared_run: Path) -> None:
    side = open_run(shared_run)

    async def use(server: ViewerServer, request: Request) -> None:
        for name, (kind, content) in page_files().items():
            for path in {f"/{name}", "/" if name == "index.html" else f"/{name}"}:
                status, headers, body = await request(path, token=None)
                assert (status, body) == (200, content)
                assert headers["Content-Type"].startswith(kind)
        assert json.loads((await request("/data/sides"))[2]) == {"sides": 2}
        for index in (0, 1):
            names = (
                "meta",
                "positions",
                "moments",
                "executions",
                "calls",
                "ends",
                "bounds",
                "call",
            )
            for name in names:
                status, headers, body = await request(f"/data/{index}/{name}/0")
                assert (status, body) == (200, side.chunk(name, "0"))
                assert {*HEADERS.items()} <= {*headers.items()}
        assert (await request(f"/data/0/mind/1-{STEPS}"))[0] == 200

    served([side, side], use)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/data/2/meta/0", "GET", 404),
        ("/data/x/meta/0", "GET", 404),
        ("/data/0/meta/99999999999999999999", "GET", 404),
        ("/data/0/nothing/0", "GET", 404),
        ("/data/0/positions/%2e%2e", "GET", 404),
        ("/data/0/%2e%2e%2f%2e%2e%2fetc/0", "GET", 404),
        ("/data/0/meta/0/", "GET", 404),
        ("/nothing.html", "GET", 404),
        ("/..%2fserver.py", "GET", 404),
        ("/%00", "GET", 404),
        ("/data/0/meta/0", "POST", 405),
        ("/", "DELETE", 405),
        ("/control/pause", "GET", 405),
        ("/control/explode", "POST", 404),
        ("/control/pause", "POST", 409),
    ],
)
def test_odd_requests(shared_run: Path, path: str, method: str, status: int) -> None:
    async def use(server: ViewerServer, request: Request) -> None:
        found, headers, body = await request(path, method)
        assert found == status
        assert isinstance(json.loads(body)["error"], str)
        assert {*HEADERS.items()} <= {*headers.items()}

    served([open_run(shared_run)], use)


@pytest.mark.parametrize("token", [None, "", "x", "é", "a" * 5000])
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/data/sides", "GET"),
        ("/data/0/meta/0", "GET"),
        ("/events", "GET"),
        ("/control/stop", "POST"),
    ],
)
def test_without_the_token(shared_run: Path, token: str | None, path: str, method: str) -> None:
    commands: list[str] = []

    async def use(server: ViewerServer, request: Request) -> None:
        status, _, body = await request(path, method, token=token)
        assert status == 401
        assert "token" in json.loads(body)["error"]

    served([open_run(shared_run)], use, control=commands.append)
    assert not commands


def test_commands(shared_run: Path) -> None:
    commands: list[str] = []

    async def use(server: ViewerServer, request: Request) -> None:
        for command in ("pause", "resume", "stop"):
            assert (await request(f"/control/{command}", "POST"))[0] == 200

    served([open_run(shared_run)], use, control=commands.append)
    assert commands == ["pause", "resume", "stop"]


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.168.0.7", True),
        ("my.machine:80", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("", False),
        (":80", False),
        (None, False),
        ("[::1].evil.example", True),  # not a host that a browser sends
    ],
)
def test_hosts(host: str | None, is_accepted: bool) -> None:
    assert Access("my.machine").accepts_host(host) is is_accepted


def test_another_site_s_name_is_refused(shared_run: Path) -> None:
    async def use(server: ViewerServer, request: Request) -> None:
        for path in ("/", "/data/sides"):
            status, _, body = await request(path, Host="evil.example")
            assert status == 403
            assert "by its address" in json.loads(body)["error"]

    served([open_run(shared_run)], use)


def test_other_machines_get_packed_chunks(
    shared_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = open_run(shared_run)
    monkeypatch.setattr(server_module, "GZIP_BYTES_MIN", 10)

    async def use(server: ViewerServer, request: Request) -> None:
        _, headers, body = await request("/data/0/executions/0", Accept_Encoding="gzip")
        assert "Content-Encoding" not in headers
        monkeypatch.setattr(server_module, "_is_far", lambda request: True)
        _, headers, body = await request("/data/0/executions/0", Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == side.chunk("executions", "0")

    served([side], use)


def test_events_follow_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "INTERVAL_S", 0.01)
    run = simulation(tmp_path)
    run._recording.describe(run._initial, STEPS, simulated=True)
    side = open_run(tmp_path)
    status: dict[str, Any] = {"calls": 7, "paused": True, "state": "paused"}

    async def use(server: ViewerServer, _request: Request) -> None:
        events = server._events.watch()
        first = parsed(await anext(events))
        assert first["status"] == {
            "calls": 7,
            "paused": True,
            "state": "paused",
            "can_control": False,
            "floor": side.steps.steps,
            "newest": max(side.timeline.steps, side.steps.steps),
            "tokens": side.timeline.tokens,
        }
        assert "map" not in first["meta"]
        await asyncio.to_thread(run.run, STEPS)
        changed: set[str] = set()
        async for event in events:
            found = parsed(event)
            changed |= found["changed"].keys()
            if not found["meta"]["live"] and found["meta"]["steps"] == STEPS:
                break
        assert {"positions", "moments", "executions", "ends"} <= changed
        await asyncio.to_thread(rmtree, tmp_path)
        async for event in events:
            if "error" in (found := parsed(event)):
                assert "removed" in found["error"]
                break
        await events.aclose()  # type: ignore[attr-defined]
        assert server._events._following is None

    served([side], use, status=lambda: status)


def test_watchers_are_bounded(shared_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "WATCHERS_MAX", 2)

    async def use(server: ViewerServer, request: Request) -> None:
        watching = [server._events.watch() for _ in range(2)]
        for events in watching:
            await anext(events)
        status, _, body = await request("/events")
        assert status == 503
        assert "close one" in json.loads(body)["error"]
        await server._events.close()
        for events in watching:
            async for _ in events:  # ends
                pass

    served([open_run(shared_run)], use)


def test_a_page_that_does_not_read_is_dropped(
    shared_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "INTERVAL_S", 0.0)
    monkeypatch.setattr(live_events, "QUEUED_MAX", 2)

    async def use(server: ViewerServer, _request: Request) -> None:
        events = server._events.watch()
        await anext(events)
        while server._events._watchers:
            await asyncio.sleep(0.01)
        assert len([event async for event in events]) <= 2

    served([open_run(shared_run)], use)


def test_connections_that_hang(shared_run: Path) -> None:
    """They are dropped for new ones; those who ask are answered."""

    async def use(server: ViewerServer, request: Request) -> None:
        assert server._listening is not None
        port = server._listening.sockets[0].getsockname()[1]
        hanging = []
        for number in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /data/sides HTTP/1.1\r\nHost: x\r\n"[: number * 3])
            hanging.append(writer)
        assert (await request("/data/sides"))[0] == 200
        assert len(server._connections.open) <= 8
        for raw in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 20_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw)
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
        assert (await request("/data/sides"))[0] == 200
        for writer in hanging:
            writer.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "LIMITS", server_module.Limits(connections=8, header_s=0.5))
        served([open_run(shared_run)], use)


def test_a_port_that_is_taken(shared_run: Path) -> None:
    side = open_run(shared_run)

    async def use(server: ViewerServer, _request: Request) -> None:
        assert server._listening is not None
        port = server._listening.sockets[0].getsockname()[1]
        other = ViewerServer([side])
        with pytest.raises(MetropolisError, match="choose another --host or --port"):
            await other.start(port)

    served([side], use)


def parsed(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    found: dict[str, Any] = json.loads(event[6:])
    return found
