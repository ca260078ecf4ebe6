"""The engine's HTTP server: chats, completions, models, metrics, aborts."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

import msgspec
from aiohttp import web

from metropolis.gateway.json_shape import check_shape
from metropolis.gateway.probing import METROPOLIS
from metropolis.gateway.response_builder import error_body
from metropolis.gateway.routes import CHATS, COMPLETIONS
from metropolis.listening import cannot_listen, url_at
from metropolis.torch_engine.answers import DONE, AnswerFormat, cache_headers
from metropolis.torch_engine.engine import Engine
from metropolis.torch_engine.engine_thread import EngineThread
from metropolis.torch_engine.generation_request import EngineError, GenerationRequest, Output
from metropolis.torch_engine.metrics import Metrics
from metropolis.torch_engine.request_parsing import Body, PromptReader, parsed
from metropolis.types import MetropolisError

BODY_BYTES_MAX = 16 << 20
CLOSE_S = 5.0
"""Timeout for answers when the server closes."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Abort(msgspec.Struct):
    rid: str


class Server:
    """Serves `engine`, whose prefills `metrics` counts."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._thread: EngineThread | None = None
        self._readers = {
            name: PromptReader(model.tokenizer, model.positions, model.vocabulary)
            for name, model in engine.models.items()
        }
        self._reading = ThreadPoolExecutor(1, "prompts")
        """Tokenizers may not be used by several threads; a long prompt takes a while."""
        app = web.Application(middlewares=[_in_openai_format], client_max_size=BODY_BYTES_MAX)
        app.router.add_post(CHATS, self._generate)
        app.router.add_post(COMPLETIONS, self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._text)
        app.router.add_post("/abort_request", self._abort)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CLOSE_S)

    async def start(self, host: str, port: int) -> str:
        """Listen, at a free port if `port` is 0; returns the URL. Raises MetropolisError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen(host, port, error) from None
        self._thread = EngineThread(self._engine)
        return url_at("http", self._runner.addresses[0])

    async def failure(self) -> BaseException:
        """Wait until the engine has failed."""
        assert self._thread is not None
        return await self._thread.failed

    async def close(self) -> None:
        """End the engine, which ends all requests with a sentence, and then the connections."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)
        await self._runner.cleanup()
        self._reading.shutdown(cancel_futures=True)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        content = await _body_of(request)
        check_shape(content)
        is_chat = request.path == CHATS
        body = parsed(content, is_chat=is_chat)
        model = self._model_of(body)
        prompt = await asyncio.get_running_loop().run_in_executor(
            self._reading, partial(self._readers[model].read, body, is_chat=is_chat)
        )
        answer = AnswerFormat(model, len(prompt), is_chat=is_chat)
        return await self._answer(request, body, body.request(model, prompt), answer)

    async def _answer(
        self, request: web.Request, body: Body, asked: GenerationRequest, answer: AnswerFormat
    ) -> web.StreamResponse:
        assert self._thread is not None
        finish = "cancelled"
        outputs: list[Output] = []
        response: web.StreamResponse | None = None
        try:
            async with aclosing(self._thread.generate(asked)) as arriving:
                async for output in arriving:
                    outputs.append(output)
                    if body.stream:
                        if response is None:
                            response = await _begun_stream(request, output)
                        if output.text or output.finish or len(outputs) == 1:
                            await response.write(answer.event(output))
            finish = str(outputs[-1].finish)
        except EngineError as error:
            finish = "failed"
            if response is None:
                raise
            sentence = msgspec.json.encode(error_body(500, str(error)))
            await response.write(b"data: " + sentence + b"\n\n")
            return response
        except MetropolisError:
            finish = "refused"
            raise
        finally:
            self._metrics.requests.labels(asked.model, finish).inc()
            self._metrics.generated.labels(asked.model).inc(outputs[-1].tokens if outputs else 0)
        if response is None:
            headers = cache_headers(outputs[-1].origin)
            return web.Response(
                body=answer.whole(outputs), content_type="application/json", headers=headers
            )
        if body.wants_usage:
            await response.write(answer.usage_event(outputs[-1]))
        await response.write(DONE)
        await response.write_eof()
        return response

    def _model_of(self, body: Body) -> str:
        models = self._engine.models
        if body.model in models:
            return body.model
        if body.model is None and len(models) == 1:
            return next(iter(models))
        names = ", ".join(models)
        raise UnknownModelError(f"there is no model {body.model!r}; this engine serves {names}")

    async def _models(self, request: web.Request) -> web.Response:  # noqa: ARG002
        listed = [
            {
                "id": name,
                "object": "model",
                "owned_by": METROPOLIS,
                "kv_capacity_tokens": self._engine.capacity_tokens,
                "max_model_len": model.positions,
                "input_layers": sorted(self._engine.kept_inputs(name)),
                "is_receiver": self._engine.is_receiver(name),
            }
            for name, model in self._engine.models.items()
        ]
        return web.json_response({"object": "list", "data": listed})

    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        assert self._thread is not None
        return web.Response(status=503 if self._thread.failed.done() else 200)

    async def _text(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(
            body=self._metrics.text(self._engine),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _abort(self, request: web.Request) -> web.Response:
        """Abort the requests whose `rid` begins with the given one, as SGLang does."""
        try:
            prefix = msgspec.json.decode(await _body_of(request), type=_Abort).rid
        except (ValueError, RecursionError) as error:
            raise MetropolisError(f'the body should be {{"rid": an id}}: {error}') from None
        assert self._thread is not None
        self._thread.abort(prefix)
        return web.Response()


class UnknownModelError(MetropolisError):
    """No model has the name."""


async def _begun_stream(request: web.Request, output: Output) -> web.StreamResponse:
    """Send the head of a stream, when the prefill has ended."""
    response = web.StreamResponse(headers=cache_headers(output.origin))
    response.content_type = "text/event-stream"
    await response.prepare(request)
    return response


async def _body_of(request: web.Request) -> bytes:
    try:
        return await request.read()
    except (zlib.error, web.RequestPayloadError):
        raise MetropolisError("the body is not encoded as its headers say") from None


@web.middleware
async def _in_openai_format(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except MetropolisError as error:
        status, code = 400, None
        if isinstance(error, UnknownModelError):
            status, code = 404, "model_not_found"
        elif isinstance(error, EngineError):
            status = 500
        return web.json_response(error_body(status, str(error), code), status=status)
    except ConnectionError:
        return web.Response()  # the client disconnected
    except web.HTTPException as error:
        sentence = f"{request.method} {request.path}: {error.reason}"
        return web.json_response(error_body(error.status, sentence), status=error.status)
