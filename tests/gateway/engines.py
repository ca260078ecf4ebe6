"""A stub engine that can be held, killed and restarted at the same address, and a gateway."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.gateway.access import Access
from metropolis.gateway.engine_client import LIMITS, EngineClient
from metropolis.gateway.keys import engine_key
from metropolis.gateway.limits import Limits
from metropolis.gateway.probing import TEST_PROMPT
from metropolis.gateway.proxy import Gateway
from metropolis.gateway.scheduler_driver import SchedulerDriver
from metropolis.gateway.server import DEFAULT_ACCESS, DEFAULT_LIMITS, Server
from metropolis.llm.backends.connection import AnswerLimits
from metropolis.policy.base import Policy
from metropolis.policy.fixed import Fcfs
from metropolis.reuse.base import CacheReuse
from tests.llm.raw_server import RawServer


def question_of(body: dict[str, Any]) -> str:
    return str(body["prompt"] if "prompt" in body else body["messages"][-1]["content"])


def chat(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": question}], **fields}


class StubEngine:
    """Answers once `open` is set; records requests in order of arrival."""

    def __init__(self, owned_by: str = "stub", latency_s: float = 0.0) -> None:
        self.owned_by, self.latency_s = owned_by, latency_s
        self.open = asyncio.Event()
        self.open.set()
        self.pieces: asyncio.Semaphore | None = None
        """If set, every piece of a stream acquires it."""
        self.piece_s = 0.0
        """Delay before every piece of a stream."""
        self.preemptions = 0
        """Value of SGLang's metric."""
        self.counted, self.metrics_status = 0, 200
        """Number of requests for /metrics, and their status; 404: no such route."""
        self.look_status = 200
        """Status of /v1/models, which is held while `looks` is not set."""
        self.looks = asyncio.Event()
        self.looks.set()
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.answered: Counter[str] = Counter()
        self.sent = 0
        """Number of pieces sent in streams."""
        self.left = 0
        """Number of clients that disconnected before the end of their answer."""
        self.running: list[str] = []
        self.aborted: list[str] = []
        """Ids in abort requests."""
        self.keys: list[str | None] = []
        """Keys of abort requests."""
        self.listens = asyncio.Event()
        self.listens.set()
        """Cleared to hold abort requests."""
        self.abort_status = 200
        self.hit: list[str] = []
        """Running requests that were aborted: those whose id begins with the given one (SGLang)."""
        self.status = 200
        self.reports: dict[str, str] = {}
        """Headers of answers."""
        self.models = ["tiny"]
        self.model_fields: dict[str, dict[str, Any]] = {}
        """Further fields of models in their list."""
        self.takes_priorities = True
        self.tested = 0
        """Number of the gateway's tests of priorities, which are not recorded otherwise."""
        self.cache_info = ""
        """A line of vLLM's metrics."""
        self.server_info: dict[str, Any] | None = None
        """SGLang's server info."""
        self._port = 0

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(raw) for raw in self.raw]

    @property
    def questions(self) -> list[str]:
        return [question_of(body) for body in self.bodies]

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_post("/abort_request", self._abort)
        self.add_routes(app.router)
        app.router.add_post("/v1/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096).start()
        self._port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{self._port}"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the routes of a subclass."""

    async def kill(self) -> None:
        """Close all connections and stop listening."""
        if self._runner.server is not None:
            self.abort_connections()
            await self._runner.cleanup()

    def abort_connections(self) -> None:
        """Close all connections, as an engine that restarts."""
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def whole(self, body: dict[str, Any]) -> bytes:
        return answer_to(question_of(body))

    def events(self, body: dict[str, Any]) -> Iterable[bytes]:
        return pieces_of(question_of(body)) if "messages" in body else counting(body)

    async def _models(self, request: web.Request) -> web.Response:
        await self.looks.wait()
        models = [
            {"id": name, "object": "model", "owned_by": self.owned_by}
            | self.model_fields.get(name, {})
            for name in self.models
        ]
        return web.json_response({"object": "list", "data": models}, status=self.look_status)

    async def _metrics(self, request: web.Request) -> web.Response:
        name = 'sglang:num_retracted_requests_total{model_name="a b"}'
        self.counted += 1
        text = f"# HELP x y\n{name} {self.preemptions}.0\nother 7\n{self.cache_info}\n"
        return web.Response(text=text, status=self.metrics_status)

    async def _server_info(self, request: web.Request) -> web.Response:
        if self.server_info is None:
            return web.Response(status=404)
        return web.json_response(self.server_info)

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        self.keys.append(request.headers.get("Authorization"))
        self.hit += [running for running in self.running if running.startswith(rid)]
        await self.listens.wait()
        return web.Response(status=self.abort_status, text="no key")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.raw.append(await request.read())
        self.headers.append(dict(request.headers))
        body = json.loads(self.raw[-1])
        if body.get("prompt") == TEST_PROMPT and body.get("priority") == 1:
            return self._tested()
        rid = body.get("rid", "")
        self.running.append(rid)
        try:
            await asyncio.sleep(self.latency_s)
            await self.open.wait()
            if body.get("stream"):
                return await self._stream(request, question_of(body), self.events(body))
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.running.remove(rid)
        self.answered[question_of(body)] += 1
        return web.Response(
            body=self.whole(body),
            status=self.status,
            content_type="application/json",
            headers={"X-Request-Id": "17"} | self.reports,
        )

    def _tested(self) -> web.Response:
        """Answer the gateway's test of priorities."""
        self.tested += 1
        self.raw.pop()
        self.headers.pop()
        refusal = {"error": {"message": "Priority scheduling is not enabled."}}
        return web.json_response(
            {} if self.takes_priorities else refusal, status=200 if self.takes_priorities else 400
        )

    async def _stream(
        self, request: web.Request, question: str, events: Iterable[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | self.reports)
        await response.prepare(request)
        for piece in events:
            if self.piece_s:
                await asyncio.sleep(self.piece_s)
            if self.pieces is not None:
                await self.pieces.acquire()
            await response.write(piece)
            self.sent += 1
        self.answered[question] += 1
        return response


def answer_to(question: str) -> bytes:
    """The unusual white space shows whether it is forwarded unchanged."""
    message = {"role": "assistant", "content": f"to {question} — ¿sí?"}
    whole = {
        "id": "x", "object": "chat.completion", "created": 1, "model": "tiny",
        "choices": [{"index": 0, "message": message, "text": "t", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }  # fmt: skip
    return json.dumps(whole, indent=3, ensure_ascii=False).encode() + b" \n"


def pieces_of(question: str) -> list[bytes]:
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    words = ["to", " ", question, "!"]
    events = [
        frame | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
        for word in words
    ]
    events.append(frame | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]


def counting(body: dict[str, Any]) -> Iterator[bytes]:
    """Continue counting after the prompt's words, with one word per requested token."""
    name, *counted = body["prompt"].split(" ")
    for n in range(len(counted), len(counted) + body["max_tokens"]):
        choice = {"index": 0, "text": f" {n}", "finish_reason": None}
        yield f"data: {json.dumps({'id': name, 'choices': [choice]})}\n\n".encode()
    choice = {"index": 0, "text": "", "finish_reason": "length"}
    yield f"data: {json.dumps({'id': name, 'choices': [choice]})}\n\n".encode()
    yield b"data: [DONE]\n\n"


@asynccontextmanager
async def gateway_before(
    *engines: StubEngine | RawServer,
    policy: Policy | None = None,
    dispatcher: Callable[[Fleet], Dispatcher] = LeastLoaded,
    at_once: int = 4096,
    queue_limit: int = 10_000,
    idle_s: float = 60.0,
    kind: str = "",
    limits: Limits = DEFAULT_LIMITS,
    access: Access = DEFAULT_ACCESS,
    log: Callable[[str], None] = lambda _: None,
    answers: AnswerLimits = LIMITS,
    tls: ssl.SSLContext | None = None,
    reuse: CacheReuse | None = None,
) -> AsyncIterator[tuple[str, Gateway]]:
    """Yield the gateway's URL and the gateway; start the engines before it, kill them after it."""
    urls = [await engine.start() for engine in engines]
    fleet = Fleet.uniform(len(engines), 100_000, 30.0)
    scheduling = SchedulerDriver(policy or Fcfs(), dispatcher(fleet), at_once, queue_limit)
    gateway = Gateway(
        [EngineClient(kind + url, engine_key(1), answers) for url in urls],
        scheduling,
        idle_s,
        log,
        reuse=reuse,
    )
    server = Server(gateway, limits, access, log)
    try:
        yield await server.start("127.0.0.1", 0, tls), gateway
    finally:
        await server.close()
        for engine in engines:
            await engine.kill()


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds, for at most 300 s."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.005)


async def until_reported(report: Callable[[], float], value: float, wall_s: float = 60) -> None:
    """Wait until `report`, which may block, returns `value`, for at most `wall_s`.

    The tests' gateway uses the same event loop.
    """
    async with asyncio.timeout(wall_s):
        while await asyncio.to_thread(report) != value:
            await asyncio.sleep(0.05)
