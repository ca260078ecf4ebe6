"""The gateway as an in-process backend of a run: engines, a policy, a dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn, TypeVar

from metropolis.dispatch.base import Dispatcher
from metropolis.gateway.engine_client import EngineClient, Probe
from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.exchange_driver import Answer
from metropolis.gateway.keys import engine_key
from metropolis.gateway.models import UnknownModelError
from metropolis.gateway.proxy import Gateway
from metropolis.gateway.request_parsing import from_fields
from metropolis.gateway.scheduler_driver import QueueFullError, SchedulerDriver
from metropolis.llm.api_keys import api_key
from metropolis.llm.backends import wire
from metropolis.llm.backends.compatible import Compatible, path_of
from metropolis.llm.backends.http import decode, events_in, reason_in, refusal
from metropolis.llm.backends.meter import Meter
from metropolis.llm.backends.pool import END_S
from metropolis.llm.base import (
    Completion,
    RateLimitedError,
    RefusedError,
    Request,
    Service,
    UnreachableError,
)
from metropolis.llm.placement import placement_of
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.scheduler.base import Place
from metropolis.types import MetropolisError

IDLE_S = 60.0
QUEUE_LIMIT = 1 << 20
"""Large, as the client limits its own requests."""
RETRY_S = 1.0
NO_ENGINE_S = 1.0
"""Time without any engine after which requests fail; the client retries as with any server."""
SHOWN_ENGINES = 8

T = TypeVar("T")


class LocalGateway:
    """A backend with the engines of `specs`, in the format of `metropolis gateway`.

    An engine has at most `at_once` requests. It gets the key that `engine_key` finds for it, or
    else that of OPENAI_API_KEY. Requests carry their program, function and step. `log` receives
    the result of each engine's first probe, and a message when one is lost or returns; while none
    answers, requests raise UnreachableError. `sends_seed` False omits sampling seeds; `model` and
    `named` are as for Compatible. `detects_traits` False suffices for `check`: the engines are only
    asked for their models.
    """

    def __init__(
        self,
        specs: Sequence[str],
        policy: Policy,
        dispatcher: Dispatcher,
        model: str | None = None,
        named: Collection[str] = (),
        at_once: int = 256,
        log: Callable[[str], None] = lambda _: None,
        *,
        sends_seed: bool = True,
        detects_traits: bool = True,
    ) -> None:
        self._compatible = Compatible(
            "http://gateway", model, is_before_engines=True, sends_seed=sends_seed
        )
        """Writes the bodies."""
        self._engines = [
            _EngineClient(spec, engine_key(n)) for n, spec in enumerate(specs, start=1)
        ]
        for engine in self._engines:
            engine.detects_traits = detects_traits
        self._called = f"the gateway before {', '.join(engine.name for engine in self._engines)}"
        scheduling = _SchedulerDriver(policy, dispatcher, at_once, self._unreachable)
        self.gateway = Gateway(self._engines, scheduling, IDLE_S, log)
        self._meter = Meter(self._called)
        self._wanted, self._named = model, named
        self._started: asyncio.Task[None] | None = None
        key = api_key("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def __str__(self) -> str:
        return self._called

    def __getstate__(self) -> NoReturn:
        raise MetropolisError(
            "an in-process gateway cannot serve other processes; start `metropolis gateway` and "
            "give the workers its URL"
        )

    @property
    def name(self) -> str:
        """See Backend."""
        return self._compatible.name

    async def check(self) -> None:
        """Request the engines' models."""
        server = await self._server()
        try:
            models = await wire.models_of(server, "models")
        except EngineLostError:
            raise self._unreachable() from None
        self._compatible.name = wire.choose_model(str(self), self._wanted, models, self._named)

    async def complete(self, request: Request) -> Completion:
        """Return the whole answer."""
        server = await self._server()
        completion = await wire.complete(
            server, path_of(request), self._compatible.body_of(request), request
        )
        return completion.with_service(server.service)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """Yield the answer's pieces, then the whole answer."""
        server = await self._server()
        async for item in wire.stream(
            server, path_of(request), self._compatible.body_of(request), request
        ):
            yield item if isinstance(item, str) else item.with_service(server.service)

    def promote(self, request: Request) -> None:
        """See Promoter."""
        program = placement_of(request).program
        assert program is not None
        self.gateway.promote(program)

    async def close(self) -> None:
        """Close all connections."""
        await self.gateway.close()

    async def _server(self) -> _GatewayServer:
        if self._started is None:
            self._started = asyncio.ensure_future(self.gateway.start())
        await asyncio.shield(self._started)
        return _GatewayServer(self.gateway, self._headers, self._meter)

    def _unreachable(self) -> UnreachableError:
        sentences = [engine.sentence for engine in self._engines]
        more = len(sentences) - SHOWN_ENGINES
        return UnreachableError(
            f"no engine answers: {'; '.join(sentences[:SHOWN_ENGINES])}"
            + (f"; and {more} more" if more > 0 else "")
        )


class _EngineClient(EngineClient):
    """Keeps the last message about the engine."""

    def __init__(self, spec: str, api_key: str | None) -> None:
        super().__init__(spec, api_key)
        self.sentence = f"the engine at {self.name} has not been probed yet"

    async def probe(self) -> Probe:
        """See EngineClient."""
        probe = await super().probe()
        self.sentence = probe.sentence
        return probe

    def lost(self, error: Exception) -> EngineLostError:
        """See EngineClient."""
        lost = super().lost(error)
        self.sentence = str(lost)
        return lost


class _SchedulerDriver(SchedulerDriver):
    """Fails waiting requests with the error of `unreachable` while no engine answers."""

    def __init__(
        self,
        policy: Policy,
        dispatcher: Dispatcher,
        at_once: int,
        unreachable: Callable[[], UnreachableError],
    ) -> None:
        super().__init__(policy, dispatcher, at_once, QUEUE_LIMIT)
        self._unreachable = unreachable
        self._until_s: float | None = None
        """When waiting requests fail, by the event loop's clock; None while an engine answers."""
        self._limits: set[asyncio.Timeout] = set()

    async def place(
        self, request: QueuedRequest, *, is_requeued: bool = False, only: int | None = None
    ) -> Place:
        """See SchedulerDriver; raises UnreachableError."""
        try:
            async with asyncio.timeout_at(self._until_s) as limit:
                self._limits.add(limit)
                try:
                    return await super().place(request, is_requeued=is_requeued, only=only)
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            raise self._unreachable() from None

    def set_is_up(self, instance: int, is_up: bool) -> None:
        """See SchedulerDriver."""
        super().set_is_up(instance, is_up)
        if any(self.is_up):
            until_s = None
        else:
            until_s = self._until_s or asyncio.get_running_loop().time() + NO_ENGINE_S
        if until_s != self._until_s:
            self._until_s = until_s
            for limit in self._limits:
                if not limit.expired():
                    limit.reschedule(until_s)


class _GatewayServer:
    """The gateway as a server for `wire` and one request, passed as fields, without HTTP."""

    def __init__(self, gateway: Gateway, headers: dict[str, str], meter: Meter) -> None:
        self._gateway, self._headers = gateway, headers
        """`_headers`: those for engines."""
        self.meter, self.called = meter, meter.called
        self.service: Service | None = None
        """How the request was served, once it has been answered."""

    def without_key(self, text: str) -> str:
        """See wire.Server: its answers are the gateway's own."""
        return text

    async def get(self, path: str, form: type[T]) -> T:
        """See wire.Server."""
        status, headers, body = await self._gateway.pool.models(f"/v1/{path}", self._headers)
        if status != 200:
            raise self._refusal(status, headers, body, "the check", path)
        return decode(body, form, self.called, "the check")

    async def post(self, path: str, body: Any, form: type[T], request: Request) -> T:
        """See wire.Server."""
        async with self._answer(path, body, request) as answer:
            return decode(answer.whole or b"", form, self.called, request.where)

    async def events(
        self, path: str, body: Any, form: type[T], request: Request
    ) -> AsyncGenerator[T, None]:
        """See wire.Server."""
        async with self._answer(path, body, request) as answer:
            async for event in events_in(answer.pieces, form, self.called, request.where):
                yield event
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    async for _ in answer.pieces:  # up to the regular end
                        pass

    @asynccontextmanager
    async def _answer(self, path: str, body: Any, request: Request) -> AsyncIterator[Answer]:
        resuming, placement = self._gateway.resuming, placement_of(request)
        sent = from_fields(f"/v1/{path}", self._headers, body, placement, resuming)
        try:
            async with self._gateway.answer_to(sent) as answer:
                if answer.status != 200:
                    headers, whole = answer.headers, answer.whole
                    raise self._refusal(answer.status, headers, whole, request.where, path)
                yield answer
                self.service = answer.service()
        except QueueFullError as error:
            raise RateLimitedError(str(error), RETRY_S) from None
        except UnknownModelError as error:
            raise RefusedError(f"{self.called} refuses {request.where}: {error}") from None

    def _refusal(
        self,
        status: int,
        headers: Iterable[tuple[str, str]],
        whole: bytes | None,
        where: str,
        path: str,
    ) -> Exception:
        retry_after = dict(headers).get("retry-after")
        return refusal(
            status, reason_in(whole or b""), retry_after, self.called, where, f"/v1/{path}"
        )
