"""The path of a request: into its program, through the queue, to an engine, and back.

`Gateway` accepts requests and accounts for them; `ExchangeDriver` does the I/O of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TypeVar

from metropolis.gateway.engine_client import EngineClient, Reply
from metropolis.gateway.engine_pool import EnginePool
from metropolis.gateway.exchange import Exchange, ExchangeState
from metropolis.gateway.exchange_driver import Answer, ExchangeDriver
from metropolis.gateway.metrics import Metrics
from metropolis.gateway.models import UnknownModelError, model_named_in
from metropolis.gateway.programs import ProgramTracker
from metropolis.gateway.promotions import Promotions
from metropolis.gateway.request_parsing import ClientRequest, Resuming, from_http
from metropolis.gateway.responses import Responses
from metropolis.gateway.scheduler_driver import SchedulerDriver
from metropolis.gateway.statuses import (
    BAD_GATEWAY,
    CLIENT_CLOSED,
    TOO_MANY_REQUESTS,
    status_of,
)
from metropolis.gateway.unordered_request import UnorderedRequest
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.faults import PluginError, RequestRefusedError
from metropolis.reuse.base import CacheReuse
from metropolis.types import MetropolisError

SWEEP_S = 1.0
INLINE_BYTES = 64 << 10
"""Maximum size of a body parsed on the event loop, which takes at most 1 ms."""

T = TypeVar("T")


class Gateway:
    """Engines behind one queue; `log` receives a message when one is lost or returns.

    The dispatcher learns the KV cache size of each engine, unless `learns_capacity` is False.
    Raises MetropolisError when an engine is listed twice.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        scheduling: SchedulerDriver,
        idle_s: float,
        log: Callable[[str], None] = lambda _: None,
        *,
        learns_capacity: bool = True,
        reuse: CacheReuse | None = None,
    ) -> None:
        self.engines, self.scheduling = engines, scheduling
        self.pool = EnginePool(
            engines, scheduling, log, learns_capacity=learns_capacity, reuse=reuse
        )
        scheduler = scheduling.scheduler
        self.programs = ProgramTracker(idle_s, scheduler.program_ended, self._function_ended)
        self.metrics = Metrics()
        self.responses = Responses()
        self._log = log
        scheduler.on_fault = self._log_fault
        self._faulty: set[str] = set()
        """Methods of plug-ins whose fault has been reported."""
        self.promotions = Promotions()
        self._parsing = asyncio.Semaphore()
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Probe every engine; raises as `EnginePool.start`."""
        await self.pool.start()
        self._sweeping = asyncio.ensure_future(self._sweep())

    async def close(self) -> None:
        """Stop probing and close connections."""
        sweeping = self._sweeping
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.wait([sweeping])
        await self.pool.close()
        if sweeping is not None and not sweeping.cancelled():
            sweeping.result()  # raises the error that ended it

    @property
    def resuming(self) -> Resuming:
        """Which answers are resumed."""
        return Resuming(self.scheduling.scheduler.preempts, self.pool.is_known)

    async def parse(
        self, path: str, headers: Mapping[str, str], body: bytes, tenant: str = ""
    ) -> ClientRequest:
        """Parse a POST; raises MetropolisError on an invalid request."""
        resuming = self.resuming
        with self._refusals_counted():
            return await self._offloaded(
                len(body), lambda: from_http(path, headers, body, tenant, resuming)
            )

    @asynccontextmanager
    async def answer_to(self, request: ClientRequest) -> AsyncIterator[Answer]:
        """Yield the answer to `request`.

        Raises QueueFullError, EngineLostError when engines were lost over the request,
        UnknownResponseError, UnknownModelError, and PluginError.
        """
        tenant, now_s = request.tenant, self.scheduling.clock()
        with self._refusals_counted():
            stored = self.responses.find(request.previous, tenant, now_s)
            if stored is not None:
                request = replace(request, model=None, program=request.program or stored.program)
            elif (model := self.pool.routed_by(request.model)) != request.model:
                request = replace(request, model=model)
            queued = self.programs.enter(request, now_s)
        if queued.speculative:
            queued = replace(queued, speculative=not self.promotions.is_promoted(queued.program))

        def add_response(id_: str, instance: int) -> None:
            now_s = self.scheduling.clock()
            self.responses.add(id_, instance, queued.program, tenant, now_s)

        only = None if stored is None else stored.instance
        driver = ExchangeDriver(request, queued, self.pool, self.metrics, only, add_response)
        self.pool.in_progress.add(driver)
        if queued.speculative:
            self.promotions.begin(queued)
        exchange, status = driver.exchange, 0
        try:
            try:
                answer = await driver.start()
                status = answer.status
                yield answer
                is_complete = exchange.state is ExchangeState.DONE and exchange.error is None
                status = status if is_complete else BAD_GATEWAY
            finally:
                driver.close()
        except BaseException as error:
            status = self._failed(error, exchange, status)
            raise
        finally:
            self.pool.in_progress.discard(driver)
            self.promotions.end(queued)
            if exchange.state is not ExchangeState.DONE:
                exchange.abandoned()
            try:
                self._account(queued, driver, status)
            finally:
                self.programs.leave(queued, self.scheduling.clock(), is_answered=status == 200)

    def promote(self, program: str) -> int:
        """The speculative requests of `program` are needed; returns how many are in progress.

        An engine does not learn of it if it has the request.
        """
        promoted = self.promotions.promote(program, self.scheduling.clock())
        for request_id in promoted:
            self.scheduling.promote(request_id)
        return len(promoted)

    @asynccontextmanager
    async def unordered(
        self,
        route: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        response: str | None = None,
        tenant: str = "",
    ) -> AsyncIterator[Reply]:
        """Yield an engine's answer to an unordered request; with `response`, that of its engine.

        Raises EngineLostError when no engine answers, UnknownResponseError, UnknownModelError.
        """
        unordered, status = None, 0
        try:
            stored = self.responses.find(response, tenant, self.scheduling.clock())
            only = None if stored is None else stored.instance
            model = await self._offloaded(len(body), lambda: model_named_in(body))
            if only is None and model is not None:
                model = self.pool.routed_by(model)
            unordered = UnorderedRequest(self.pool, method, path, headers, body, model, only)
            self.pool.in_progress.add(unordered)
            async with unordered.reply() as reply:
                status = reply.status
                yield reply
        except BaseException as error:
            status = status_of(error)
            raise
        finally:
            engine = ""
            if unordered is not None:
                self.pool.in_progress.discard(unordered)
                if unordered.instance is not None:
                    engine = self.engines[unordered.instance].name
            self.metrics.passed[engine, route, status] += 1

    @contextmanager
    def _refusals_counted(self) -> Iterator[None]:
        """Count a request that is refused before it has a place in the queue."""
        try:
            yield
        except MetropolisError as error:
            self.metrics.requests["", "", status_of(error)] += 1
            raise

    async def _offloaded(self, size: int, function: Callable[[], T]) -> T:
        """Return `function()`, which parses a body of `size` bytes: large ones in a thread, one at
        a time, so that the event loop is not blocked."""
        if size <= INLINE_BYTES:
            return function()
        async with self._parsing:
            return await asyncio.to_thread(function)

    def _failed(self, error: BaseException, exchange: Exchange, begun_status: int) -> int:
        """Count a request that ends with `error`; return its status.

        `begun_status` is that of the answer, if one has begun; otherwise 0.
        """
        status = status_of(error)
        if begun_status and status == CLIENT_CLOSED and exchange.is_at_its_end:
            return begun_status  # the client has all of it
        is_unplaceable = isinstance(error, PluginError | UnknownModelError)
        if begun_status and not is_unplaceable and status not in (CLIENT_CLOSED, BAD_GATEWAY):
            status = begun_status
        if isinstance(error, PluginError):
            self._log_fault(error)
        if status == CLIENT_CLOSED:
            self.metrics.aborted += 1
        elif status == TOO_MANY_REQUESTS:
            self.metrics.refused += 1
        return status

    def _account(self, request: QueuedRequest, driver: ExchangeDriver, status: int) -> None:
        """Record the end of `request` with `status`; 200 means that it was answered."""
        instance, exchange, now_s = driver.instance, driver.exchange, self.scheduling.clock()
        engine = "" if instance is None else self.engines[instance].name
        self.metrics.requests[engine, self.programs.metric_label(request.function), status] += 1
        if instance is None:
            return
        if status == 200:
            started_s, tokens = exchange.started_s, exchange.output_tokens
            self.scheduling.completed(ServedRequest(request, instance, started_s, now_s, tokens))
            self.metrics.queueing.observe(started_s - request.arrived_s)
            self.metrics.latency.observe(now_s - request.arrived_s)
        else:
            self.scheduling.cancel(request)

    def _log_fault(self, error: PluginError) -> None:
        """Report a plug-in method's fault once; a refusal concerns only its client."""
        is_refusal = isinstance(error, RequestRefusedError)
        if not is_refusal and error.method not in self._faulty:
            self._faulty.add(error.method)
            self._log(str(error))

    def _function_ended(self, function: str) -> None:
        self.metrics.forget(function)
        self.scheduling.scheduler.function_ended(function)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.programs.sweep(self.scheduling.clock())
            self.responses.sweep(self.scheduling.clock())
            self.promotions.sweep(self.scheduling.clock())
            self.scheduling.carry_out()
