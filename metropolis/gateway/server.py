"""The HTTP server: OpenAI's routes, health, metrics, graceful shutdown."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from multidict import CIMultiDict

from metropolis.gateway.access import Access, AccessError
from metropolis.gateway.bodies import body_of
from metropolis.gateway.connections import (
    RETRY_AFTER,
    ClientConnection,
    Connections,
    TLSConnection,
    error_response,
)
from metropolis.gateway.limits import Limits
from metropolis.gateway.models import UnknownModelError, model_in
from metropolis.gateway.proxy import Gateway
from metropolis.gateway.refusals import Refusals
from metropolis.gateway.request_parsing import program_of, promoted_in
from metropolis.gateway.routes import OF_RESPONSES, ORDERED, PASSED, PROMOTE, SERVER_INFO
from metropolis.gateway.scheduler_driver import QueueFullError
from metropolis.gateway.statuses import CLIENT_CLOSED, status_of
from metropolis.gateway.streaming import stream
from metropolis.gateway.unordered_request import redacted
from metropolis.listening import cannot_listen, url_at
from metropolis.llm.placement import GATEWAY
from metropolis.types import MetropolisError

HEALTH = "/health"
"""For load balancers, which have no key; without a key the answer omits engine addresses."""
REFUSAL_MESSAGES = {
    "host": "a request was refused because of its host; see --allow-host",
    "origin": "a request from a web page was refused; see --allow-origin",
    "key": "a request without a valid key was refused",
}
"""Log messages by reason."""
BACKLOG = 4096
GRACE_S = 5.0
"""Timeout for connections to close."""
DEFAULT_LIMITS, DEFAULT_ACCESS = Limits(), Access()
TENANT = web.RequestKey("tenant", str)
"""The owner of a request's key."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves `gateway` over HTTP."""

    def __init__(
        self,
        gateway: Gateway,
        limits: Limits = DEFAULT_LIMITS,
        access: Access = DEFAULT_ACCESS,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._gateway, self._access = gateway, access
        self._refusals = Refusals(gateway.metrics.early_rejections, log)
        self._connections = Connections(limits, self._refusals)
        self._is_draining = False
        self._handlings: set[asyncio.Task[object] | None] = set()
        self._listening: asyncio.Server | None = None
        app = web.Application(middlewares=[self._middleware])
        app.on_response_prepare.append(self._add_cors_headers)
        for path in ORDERED:
            app.router.add_post(path, self._forward_ordered)
        for method, path in (*PASSED, *OF_RESPONSES):
            app.router.add_route(method, path, self._forward_unordered)
        app.router.add_post(PROMOTE, self._promote)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_get(HEALTH, self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=GRACE_S)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> str:
        """Listen, at a free port if `port` is 0; returns the URL. Raises MetropolisError."""
        await self._gateway.start()
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def accepted() -> asyncio.BaseProtocol:
            connection = ClientConnection(server, self._connections)
            if tls is None:
                return connection
            return TLSConnection(connection, tls, self._connections.limits.header_s)

        try:
            self._listening = await asyncio.get_running_loop().create_server(
                accepted, host, port, backlog=BACKLOG
            )
        except OSError as error:
            await self._runner.cleanup()
            await self._gateway.close()
            raise cannot_listen(host, port, error) from None
        address = self._listening.sockets[0].getsockname()
        return url_at("http" if tls is None else "https", address)

    @property
    def unanswered(self) -> int:
        """Number of completely received requests without a complete answer."""
        return self._connections.unanswered

    async def drain(self) -> None:
        """Accept no more requests, answer those completely received, and close."""
        self._is_draining = True
        self._stop_listening()
        await self._connections.answered()
        await self.close()

    async def close(self) -> None:
        """Close everything; break off unfinished answers."""
        for handling in self._handlings:
            if handling is not None:
                handling.cancel()
        self._stop_listening()
        await self._runner.cleanup()
        await self._gateway.close()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Convert errors to OpenAI's format and count requests by tenant."""
        handling = asyncio.current_task()
        self._handlings.add(handling)
        status = CLIENT_CLOSED
        try:
            response = await self._answered(request, handler)
            status = response.status
            return response
        finally:
            self._handlings.discard(handling)
            if tenant := request.get(TENANT, ""):
                self._gateway.metrics.tenants[tenant, status] += 1

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        try:
            connection.head_received(request)
            if not request.raw_path.startswith("/"):
                raise MetropolisError("the request names no path of this server")
            self._access.check(request.headers)
            if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
                return web.Response(status=204, headers=self._access.preflight(request.headers))
            if request.path != HEALTH:
                request[TENANT] = self._access.tenant(request.headers)
            return await handler(request)
        except AccessError as error:
            self._refusals.add(error.reason, REFUSAL_MESSAGES[error.reason])
            headers, code = None, None
            if error.status == 401:
                headers, code = {"WWW-Authenticate": "Bearer"}, "invalid_api_key"
            return error_response(error.status, str(error), headers, code)
        except QueueFullError as error:
            return error_response(429, str(error), RETRY_AFTER)
        except UnknownModelError as error:
            return error_response(404, str(error), code="model_not_found")
        except MetropolisError as error:
            return error_response(status_of(error), str(error))
        except ConnectionError:
            return web.Response(status=CLIENT_CLOSED)  # the client disconnected; it is not sent
        except web.HTTPException as error:
            kept = ("Retry-After", "Allow")
            headers = {name: error.headers[name] for name in kept if name in error.headers}
            sentence = f"{request.method} {request.path}: {error.reason}"
            return error_response(error.status, sentence, headers)

    async def _add_cors_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Replace the engine's CORS headers by those for allowed web pages."""
        if allowed := self._access.cors(request.headers):
            for name in {name.lower() for name in response.headers}:
                if name.startswith("access-control-allow-origin"):
                    del response.headers[name]
            response.headers.extend(allowed)

    def _forwarded_headers(self, request: web.Request) -> CIMultiDict[str]:
        """Return the headers to forward to engines."""
        return CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if self._access.is_forwarded(name)
        )

    async def _forward_ordered(self, request: web.Request) -> web.StreamResponse:
        return await self._finish(request, self._answer)

    async def _forward_unordered(self, request: web.Request) -> web.StreamResponse:
        return await self._finish(request, self._answer_unordered)

    async def _finish(
        self,
        request: web.Request,
        answer: Callable[[web.Request, bytes], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Answer a completely received request, even while draining."""
        metrics, route = self._gateway.metrics, _route_of(request)
        try:
            body = await body_of(request, self._connections)
        except MetropolisError as error:
            metrics.count_refused(route, status_of(error))
            raise
        except web.HTTPException as error:
            metrics.count_refused(route, error.status)
            raise
        if self._is_draining:
            metrics.count_refused(route, 503)
            return error_response(503, "the gateway is shutting down", {"Connection": "close"})
        return await answer(request, body)

    async def _answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        parsed = await self._gateway.parse(
            request.path_qs, self._forwarded_headers(request), body, request.get(TENANT, "")
        )
        async with self._gateway.answer_to(parsed) as answer:
            connection = request.protocol
            assert isinstance(connection, ClientConnection)
            connection.has_been_answered |= answer.status == 200
            if answer.whole is None:
                return await stream(request, answer.status, answer.headers, answer.pieces)
            return web.Response(body=answer.whole, status=answer.status, headers=answer.headers)

    async def _answer_unordered(self, request: web.Request, body: bytes) -> web.StreamResponse:
        route, response = _route_of(request), request.match_info.get("response")
        unordered = self._gateway.unordered(
            route,
            request.method,
            request.path_qs,
            self._forwarded_headers(request),
            body,
            response,
            request.get(TENANT, ""),
        )
        async with unordered as reply:
            if reply.whole is None:
                return await stream(request, reply.status, reply.headers, reply.pieces())
            whole = redacted(reply.whole) if route in SERVER_INFO else reply.whole
            return web.Response(body=whole, status=reply.status, headers=reply.headers)

    async def _promote(self, request: web.Request) -> web.Response:
        program = promoted_in(await body_of(request, self._connections))
        promoted = self._gateway.promote(program_of(program, request.get(TENANT, "")))
        return web.json_response({"promoted": promoted})

    async def _models(self, request: web.Request) -> web.Response:
        status, headers, body = await self._gateway.pool.models(
            request.path_qs, self._forwarded_headers(request)
        )
        return web.Response(body=body, status=status, headers=[*headers, (GATEWAY, "1")])

    async def _model(self, request: web.Request) -> web.Response:
        """Answer from the list of models, as not every engine has this route."""
        status, headers, body = await self._gateway.pool.models(
            "/v1/models", self._forwarded_headers(request)
        )
        if status != 200:
            return web.Response(body=body, status=status, headers=headers)
        model = model_in(body, request.match_info["name"])
        return web.Response(body=model, content_type="application/json")

    async def _health(self, request: web.Request) -> web.Response:
        scheduling = self._gateway.scheduling
        names = [engine.name for engine in self._gateway.engines]
        is_well = any(scheduling.is_up) and not self._is_draining
        status = 200 if is_well else 503
        try:
            self._access.tenant(request.headers)
        except AccessError:
            return web.json_response({"draining": self._is_draining}, status=status)
        health = {
            "engines": dict(zip(names, scheduling.is_up, strict=True)),
            "waiting": len(scheduling),
            "draining": self._is_draining,
        }
        return web.json_response(health, status=status)

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        gateway, scheduling = self._gateway, self._gateway.scheduling
        names = [engine.name for engine in gateway.engines]
        text = gateway.metrics.text(
            dict(zip(names, scheduling.is_up, strict=True)),
            dict(zip(names, scheduling.in_flight, strict=True)),
            len(scheduling),
            len(gateway.programs),
            len(self._connections.open),
        )
        return web.Response(
            text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


def _route_of(request: web.Request) -> str:
    """Return the route of a request, without the id in its path."""
    resource = request.match_info.route.resource
    assert resource is not None
    return resource.canonical
