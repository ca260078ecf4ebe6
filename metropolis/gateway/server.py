"""The HTTP side: OpenAI's routes, health, metrics, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from metropolis.gateway.admission import QueueFullError
from metropolis.gateway.engine import EngineLostError
from metropolis.gateway.envelope import error_body
from metropolis.gateway.relay import Gateway
from metropolis.gateway.relayed import Relayed
from metropolis.types import MetropolisError

BODY_BYTES_MAX = 256 << 20
"""Pictures travel in bodies."""
RETRY_AFTER_S = 1
BACKLOG = 4096
GRACE_S = 5.0
"""How long connections may take to close."""
STALL_S = 60.0
"""A client that sends nothing of its body, or takes nothing of its answer, for so long has left."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves `gateway` over HTTP."""

    def __init__(self, gateway: Gateway, stall_s: float = STALL_S) -> None:
        self._gateway = gateway
        self._stall_s = stall_s
        self._is_draining = False
        self._handlings: set[asyncio.Task[object] | None] = set()
        self._open = 0
        """Requests whose body has come."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        app = web.Application(middlewares=[self._middleware])
        app.router.add_post("/v1/chat/completions", self._relay)
        app.router.add_post("/v1/completions", self._relay)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=GRACE_S
        )

    async def start(self, host: str, port: int) -> str:
        """Listen there, at a free port if it is 0; returns the URL. Raises MetropolisError."""
        await self._gateway.start()
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, host, port, backlog=BACKLOG)
        try:
            await self._site.start()
        except OSError as error:
            await self._runner.cleanup()
            await self._gateway.close()
            raise MetropolisError(
                f"cannot listen at {host}:{port}: {_reason(error)}; choose another --host or --port"
            ) from None
        name, port = self._runner.addresses[0][:2]
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    @property
    def unanswered(self) -> int:
        """So many requests that have come whole."""
        return self._open

    async def drain(self) -> None:
        """Take no more requests, answer those that have come whole, and close."""
        self._is_draining = True
        await self._site.stop()
        await self._all_answered.wait()
        await self.close()

    async def close(self) -> None:
        """Close everything; what has not been answered is broken off."""
        for handling in self._handlings:
            if handling is not None:
                handling.cancel()
        await self._runner.cleanup()
        await self._gateway.close()

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors as OpenAI writes them."""
        handling = asyncio.current_task()
        self._handlings.add(handling)
        try:
            return await handler(request)
        except QueueFullError as error:
            return _error(429, str(error), {"Retry-After": str(RETRY_AFTER_S)})
        except MetropolisError as error:
            return _error(502 if isinstance(error, EngineLostError) else 400, str(error))
        except ConnectionError:
            return web.Response()  # nobody is there to read it
        except web.HTTPException as error:
            return _error(error.status, f"{request.method} {request.path}: {error.reason}")
        finally:
            self._handlings.discard(handling)

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if self._is_draining:
            return _error(503, "the gateway is shutting down", {"Connection": "close"})
        self._open += 1
        self._all_answered.clear()
        try:
            return await self._answer(request, body)
        finally:
            self._open -= 1
            if not self._open:
                self._all_answered.set()

    async def _body(self, request: web.Request) -> bytes:
        body = bytearray()
        while True:
            try:
                async with asyncio.timeout(self._stall_s):
                    piece = await request.content.readany()
            except TimeoutError:
                sentence = f"nothing of the body has come for {self._stall_s:g} s"
                raise web.HTTPRequestTimeout(reason=sentence) from None
            except web.RequestPayloadError:
                raise MetropolisError(
                    "the body is not encoded as its Content-Encoding or Transfer-Encoding says"
                ) from None
            body += piece
            if not piece:
                return bytes(body)
            if len(body) > BODY_BYTES_MAX:
                raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, len(body))

    async def _answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        if request.transport is not None:
            stall_ms = int(1000 * self._stall_s)
            connected = request.transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        async with self._gateway.reply_to(request.path_qs, request.headers, body) as relayed:
            reply = relayed.reply
            if reply.whole is None:
                return await _stream(request, relayed)
            return web.Response(body=reply.whole, status=reply.status, headers=reply.headers)

    async def _models(self, request: web.Request) -> web.Response:
        reply = await self._gateway.get(request.path_qs, request.headers)
        reply.close()
        return web.Response(body=reply.whole, status=reply.status, headers=reply.headers)

    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        admission = self._gateway.admission
        names = [engine.name for engine in self._gateway.engines]
        is_well = any(admission.is_up) and not self._is_draining
        health = {
            "engines": dict(zip(names, admission.is_up, strict=True)),
            "waiting": len(admission),
            "draining": self._is_draining,
        }
        return web.json_response(health, status=200 if is_well else 503)

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        gateway, admission = self._gateway, self._gateway.admission
        names = [engine.name for engine in gateway.engines]
        text = gateway.figures.text(
            dict(zip(names, admission.is_up, strict=True)),
            dict(zip(names, admission.at_work, strict=True)),
            len(admission),
            len(gateway.sessions),
        )
        return web.Response(
            text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


async def _stream(request: web.Request, relayed: Relayed) -> web.StreamResponse:
    """Hand on piece for piece; a stream that is broken off says so, and has no proper end."""
    response = web.StreamResponse(status=relayed.reply.status, headers=relayed.reply.headers)
    try:
        await response.prepare(request)
        async for piece in relayed.pieces():
            await response.write(piece)
        await response.write_eof()
    except EngineLostError as error:
        await response.write(b"data: " + json.dumps(error_body(502, str(error))).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.close()
    return response


def _reason(error: OSError) -> str:
    """asyncio writes sentences of its own; errors of names have negative numbers."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(error_body(status, sentence), status=status, headers=headers)
