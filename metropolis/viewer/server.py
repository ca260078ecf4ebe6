"""The viewer's HTTP server: the page, chunks, events, and commands to the run; docs/viewer.md."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from metropolis.gateway.connections import ClientConnection, Connections
from metropolis.gateway.limits import Limits
from metropolis.gateway.refusals import Refusals
from metropolis.listening import cannot_listen, url_at
from metropolis.types import MetropolisError
from metropolis.viewer.access import HEADERS, Access
from metropolis.viewer.data.chunks import NoChunkError, json_bytes
from metropolis.viewer.data.side import Side
from metropolis.viewer.live_events import LiveEvents, TooManyWatchersError
from metropolis.viewer.page_files import page_files

COMMANDS = ("pause", "resume", "stop")
LIMITS = Limits(connections=512, header_s=10, idle_s=75, stall_s=60)
GZIP_LEVEL, GZIP_BYTES_MIN = 1, 4096
GRACE_S = 0.5
JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"
BINARY = ("positions", "executions", "calls", "ends", "bounds")
"""The chunks that are not JSON."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewerServer:
    """Serves the page and the chunks of `sides`.

    `status` is that of the run that started the viewer and `control` receives commands to it, one
    of `COMMANDS`; None: no run has started it, or it cannot be controlled.
    """

    def __init__(
        self,
        sides: Sequence[Side],
        *,
        host: str = "127.0.0.1",
        status: Callable[[], Mapping[str, Any] | None] = lambda: None,
        control: Callable[[str], None] | None = None,
    ) -> None:
        self._sides, self._control = sides, control
        self.access = Access(host)
        self._host = host
        self._pages = page_files()
        self._threads = ThreadPoolExecutor(2, "viewer")
        self._events = LiveEvents(sides, self._in_thread, status)
        self._connections = Connections(LIMITS, Refusals(Counter(), lambda _: None))
        self.app = web.Application(middlewares=[self._checked])
        self.app.router.add_get("/data/sides", self._count)
        self.app.router.add_get("/data/{side}/{name}/{number}", self._chunk)
        self.app.router.add_get("/events", self._follow)
        self.app.router.add_post("/control/{command}", self._command)
        self.app.router.add_get("/{name:[^/]*}", self._page)
        self._runner = web.AppRunner(
            self.app, handler_cancellation=True, shutdown_timeout=GRACE_S, access_log=None
        )
        self._listening: asyncio.Server | None = None

    async def start(self, port: int) -> str:
        """Listen, at a free port if `port` is 0; return the URL with the token.

        Raises MetropolisError if that is not possible.
        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                lambda: ClientConnection(server, self._connections), self._host, port
            )
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen(self._host, port, error) from None
        url = url_at("http", self._listening.sockets[0].getsockname())
        return f"{url}/#token={self.access.token}"

    async def close(self) -> None:
        """End all connections."""
        if self._listening is not None:
            self._listening.close()
        await self._events.close()
        await self._runner.cleanup()
        self._threads.shutdown(cancel_futures=True)

    # --- requests

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse strangers; add the headers; answer errors as JSON with a sentence."""
        if isinstance(request.protocol, ClientConnection):
            request.protocol.head_received(request)
        try:
            is_page = request.method in ("GET", "HEAD") and request.path.count("/") == 1
            is_page = is_page and request.path != "/events"
            if not self.access.accepts_host(request.headers.get("Host")):
                answer: web.StreamResponse = _error(
                    403, "Open this page by its address or as localhost, not by another name."
                )
            elif not is_page and not self.access.knows(request.headers.get("Authorization")):
                answer = _error(
                    401, "The token is missing or wrong: open the URL that the viewer printed."
                )
            else:
                answer = await handler(request)
        except web.HTTPException as error:
            answer = _error(error.status, f"{error.reason}.")
        except NoChunkError as error:
            answer = _error(404, f"{error}")
        except TooManyWatchersError as error:
            answer = _error(503, f"{error}")
        except MetropolisError as error:
            answer = _error(500, f"{error}")
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    async def _page(self, request: web.Request) -> web.Response:
        found = self._pages.get(request.match_info["name"] or "index.html")
        if found is None:
            return _error(404, "There is no such page.")
        kind, content = found
        return web.Response(body=content, content_type=kind, charset="utf-8")

    async def _count(self, _request: web.Request) -> web.Response:
        return web.Response(body=json_bytes({"sides": len(self._sides)}), content_type=JSON_TYPE)

    async def _chunk(self, request: web.Request) -> web.Response:
        side, name, number = (request.match_info[key] for key in ("side", "name", "number"))
        at = {f"{index}": found for index, found in enumerate(self._sides)}.get(side)
        if at is None:
            raise NoChunkError(f"there is no side {side[:40]!r}")
        if name == "meta":
            await self._events.catch_up(at)
        content = await self._in_thread(partial(at.chunk, name, number))
        kind = BINARY_TYPE if name in BINARY else JSON_TYPE
        response = web.Response(content_type=kind)
        if len(content) >= GZIP_BYTES_MIN and _is_far(request):
            content = await self._in_thread(partial(gzip.compress, content, GZIP_LEVEL))
            response.headers["Content-Encoding"] = "gzip"
        response.body = content
        return response

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        async with aclosing(self._events.watch()) as events:
            first = await anext(events)
            response = web.StreamResponse(headers=HEADERS)
            response.content_type = "text/event-stream"
            await response.prepare(request)
            await response.write(first)
            async for event in events:
                await response.write(event)
        return response

    async def _command(self, request: web.Request) -> web.Response:
        command = request.match_info["command"]
        if command not in COMMANDS:
            return _error(404, f"There is no such command; there are {', '.join(COMMANDS)}.")
        if self._control is None:
            return _error(
                409, "This page only watches: `metropolis run --view` starts one that controls."
            )
        self._control(command)
        return web.Response(body=json_bytes({"command": command}), content_type=JSON_TYPE)

    def _in_thread(self, function: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function)


def _error(status: int, sentence: str) -> web.Response:
    return web.Response(status=status, body=json_bytes({"error": sentence}), content_type=JSON_TYPE)


def _is_far(request: web.Request) -> bool:
    """Whether the answer goes to another machine, so that packing it saves time."""
    try:
        is_near = ip_address(request.remote or "").is_loopback
    except ValueError:
        is_near = True
    return not is_near and "gzip" in request.headers.get("Accept-Encoding", "")
