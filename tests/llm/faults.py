"""A stub server, or a proxy of a real one, that answers some requests with faults.

It speaks what SGLang and OpenAI-compatible servers speak, as far as the backends use it. Every
good answer repeats the question, so that a mixed-up answer is detected.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

FAULTS = (
    "rate limited", "rate limited, says when", "error", "overloaded", "hang", "cut", "reset",
    "malformed", "wrong", "unfinished", "slow",
)  # fmt: skip
HANG_S = 30.0
SLOW_S = 0.05

FaultOf = Callable[[int], str | None]


def question_of(body: dict[str, Any]) -> str:
    return body["text"] if "text" in body else body.get("prompt") or body["messages"][-1]["content"]


class FaultyServer:
    """`fault_of(number)` names the fault of the n-th request, None for a good answer."""

    def __init__(
        self,
        fault_of: FaultOf = lambda number: None,
        *,
        upstream: str | None = None,
        owned_by: str = "sglang",
        models: tuple[str, ...] = ("tiny",),
    ) -> None:
        self.fault_of = fault_of
        self.upstream = upstream
        self.owned_by = owned_by
        self.models = models
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.attempts: Counter[str] = Counter()
        self.aborted: list[str] = []

    async def __aenter__(self) -> FaultyServer:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        data = [{"id": name, "owned_by": self.owned_by, "object": "model"} for name in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault = self.fault_of(len(self.requests))
        self.requests.append((request.path, body))
        self.headers.append(dict(request.headers))
        if fault != SAYS_WHEN:  # the client waits for the end of such a refusal
            self.attempts[question_of(body)] += 1
        if fault == "hang":
            await asyncio.sleep(HANG_S)
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
        if fault == "cut":
            return await self._cut(request)
        if fault in REFUSALS:
            return REFUSALS[fault]()
        if self.upstream is not None:
            return await self._forward(request, body)
        if body.get("stream"):
            return await self._stream(request, body)
        return web.json_response(self._whole(request.path, body))

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        response.content_type = "application/json"
        await response.prepare(request)
        await response.write(b'{"choices": [{"message": {"content": "I will')
        assert request.transport is not None
        request.transport.close()
        return response

    async def _forward(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        url = f"{self.upstream}{request.path}"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            content = await answer.read()
        return web.Response(body=content, status=answer.status, content_type=answer.content_type)

    def _whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        text = f"to {question_of(body)}"
        for stop in body.get("stop") or body.get("sampling_params", {}).get("stop") or ():
            text = text.split(stop)[0]
        usage = {"prompt_tokens": 5, "completion_tokens": 7}
        if path == "/generate":
            meta = {"id": body["rid"], "finish_reason": {"type": "stop", "matched": 1}, **usage}
            return {"text": text, "output_ids": [1], "meta_info": meta}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if path.endswith("/chat/completions"):
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {
            "id": "x", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [choice], "usage": usage | {"total_tokens": 12},
        }  # fmt: skip

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        whole = self._whole(request.path, body)
        for event in _events(whole):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _events(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The pieces that a server sends instead of `whole`."""
    if "meta_info" in whole:
        words = whole["text"].split(" ")
        meta = whole["meta_info"]
        return [
            {"text": " ".join(words[:n]), "meta_info": meta | {"finish_reason": None}}
            for n in range(1, len(words) + 1)
        ] + [whole]
    (choice,) = whole["choices"]
    frame = whole | {"object": "chat.completion.chunk", "usage": None}
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    pieces = [
        {"text": piece} if "text" in choice else {"delta": {"content": piece}}
        for piece in (text[:2], text[2:], "")
    ]
    events = [
        frame | {"choices": [{"index": 0, "finish_reason": None if piece else "stop", **delta}]}
        for piece, delta in zip((1, 1, 0), pieces, strict=True)
    ]
    return [*events, frame | {"choices": [], "usage": whole["usage"]}]


SAYS_WHEN = "rate limited, says when"
REFUSALS: dict[str, Callable[[], web.Response]] = {
    "rate limited": lambda: web.json_response({"error": {"message": "slow down"}}, status=429),
    SAYS_WHEN: lambda: web.json_response(
        {"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.01"}
    ),
    "error": lambda: web.Response(text="out of memory", status=500),
    "overloaded": lambda: web.json_response({"message": "queue full"}, status=503),
    "malformed": lambda: web.Response(body=b'{"choices": [', content_type="application/json"),
    "wrong": lambda: web.json_response({"choices": "none", "text": 3}),
    "unfinished": lambda: web.json_response({"choices": [], "usage": None, "text": "to"}),
    "unauthorised": lambda: web.json_response({"error": {"message": "bad key"}}, status=401),
    "bad request": lambda: web.json_response({"detail": "too long"}, status=400),
}
