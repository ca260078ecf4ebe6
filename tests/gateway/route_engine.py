"""A stub engine with all routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from metropolis.gateway.routes import (
    GENERATE,
    MESSAGES,
    OF_RESPONSES,
    PASSED,
    RESPONSES,
    SERVER_INFO,
)
from tests.gateway.engines import StubEngine

BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "tiny", "input": "hello"},
    MESSAGES: {
        "model": "tiny",
        "max_tokens": 9,
        "system": "be brief",
        "messages": [{"role": "user", "content": "hello"}],
    },
    GENERATE: {"text": "hello", "sampling_params": {"max_new_tokens": 9}},
}
INFO = {
    "api_key": "sesame", "admin_api_key": "open", "launch_command": "--api-key sesame",
    "ssl_keyfile": "/k", "max_total_num_tokens": 7, "eos_token": None,
    "internal_states": [{"api_key": "sesame", "n": [1]}], "model_path": "m",
}  # fmt: skip


DEEP = b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}"


class RouteEngine(StubEngine):
    """Has all routes and stores its responses."""

    def __init__(self, owned_by: str = "stub") -> None:
        super().__init__(owned_by)
        self.kept: dict[str, str | None] = {}
        self.paths: list[tuple[str, str]] = []
        self.server_info = INFO
        self.hangs = False

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for path in BODIES:
            router.add_post(path, self._generate)
        for method, path in (*PASSED, *OF_RESPONSES):
            if path not in SERVER_INFO:
                router.add_route(method, path, self._other)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.raw.append(await request.read())
        self.headers.append(dict(request.headers))
        body = json.loads(self.raw[-1])
        await self.open.wait()
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self.kept:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        id_ = f"resp_{id(self)}_{len(self.kept)}"
        self.kept[id_] = previous
        if not body.get("stream"):
            usage = {"input_tokens": 3, "output_tokens": 42, "output_tokens_details": {}}
            return web.json_response({"id": id_, "usage": usage, "text": "t"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            if self.pieces is not None:
                await self.pieces.acquire()
            event = {"type": "e", "response": {"id": id_}, "n": number}
            written = f"event: e\ndata: {json.dumps(event)}\n\n".encode()
            await response.write(written[:20])
            await response.write(written[20:])
        return response

    async def _other(self, request: web.Request) -> web.Response:
        self.paths.append((request.method, request.path_qs))
        if self.hangs:
            self.looks.clear()
            await asyncio.sleep(60)
        echo = (await request.read()).decode() + str(self.kept.get(request.path.split("/")[-1]))
        return web.Response(text=echo, status=202, headers={"X-Seen": "1"})


@asynccontextmanager
async def asked(
    url: str, method: str, path: str, **options: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, **options) as answer,
    ):
        yield answer
