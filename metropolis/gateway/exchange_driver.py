"""The I/O of one exchange: it places the request, calls engines, and reads their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from metropolis.gateway.engine_client import Reply
from metropolis.gateway.engine_pool import EnginePool
from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.exchange import TOO_BUSY, WAITING, Exchange, ExchangeState
from metropolis.gateway.metrics import Metrics
from metropolis.gateway.payload import with_fields
from metropolis.gateway.request_parsing import ClientRequest
from metropolis.gateway.responses import FirstEvent, id_of
from metropolis.gateway.routes import RESPONSES
from metropolis.gateway.scheduler_driver import Preemptible
from metropolis.llm.base import Service
from metropolis.policy.base import QueuedRequest
from metropolis.scheduler.base import InstanceDownError
from metropolis.scheduler.models import UnservedModelError

JSON = ("content-type", "application/json")
BUSY_S = 0.5
"""Half the pause after the first refusal by an engine that is too busy; it doubles each time."""


class Answer(NamedTuple):
    """An answer for a client."""

    status: int
    headers: Sequence[tuple[str, str]]
    whole: bytes | None
    """None for a stream."""
    pieces: AsyncIterator[bytes]
    """The pieces of a stream; raises EngineLostError when it breaks off."""
    service: Callable[[], Service]
    """How it has been served so far."""


class ExchangeDriver:
    """Drives the state machine of `request`, which policies see as `queued`.

    The request goes only to the engine `only`, if given. `on_response` receives the id of a stored
    response and its engine, so that later requests can refer to it.
    """

    def __init__(
        self,
        request: ClientRequest,
        queued: QueuedRequest,
        pool: EnginePool,
        metrics: Metrics,
        only: int | None,
        on_response: Callable[[str, int], None],
    ) -> None:
        self.exchange = Exchange(request.body, request.resumable)
        self._request, self._queued, self._only = request, queued, only
        self._pool, self._metrics, self._on_response = pool, metrics, on_response
        self.instance: int | None = None
        """The engine at which the request has a place; None while it has none."""
        self._priority = 0
        """The request's priority there."""
        self._reply: Reply | None = None
        """The latest answer of an engine."""
        self._call: asyncio.Timeout | None = None
        """Set until the engine begins to answer."""
        self._is_behind = False
        """Whether the client has not read all that was sent."""
        is_response = request.path.partition("?")[0] == RESPONSES
        self._first_event = FirstEvent() if is_response else None

    async def start(self) -> Answer:
        """Wait for the answer: the whole of it, or the beginning of a stream.

        Raises EngineLostError, UnknownModelError, and as `SchedulerDriver.place`.
        """
        while self.exchange.state not in (ExchangeState.STREAMING, ExchangeState.DONE):
            await self._advance()
        if self.exchange.is_joined:
            async for _ in self._pieces():
                pass
        if self.exchange.error is not None:
            raise self.exchange.error
        reply = self._reply
        assert reply is not None
        if not self.exchange.is_joined:
            return Answer(reply.status, reply.headers, reply.whole, self._pieces(), self._service)
        status, whole = self.exchange.whole()
        headers = [(name, value) for name, value in reply.headers if name != "content-type"]
        return Answer(status, [*headers, JSON], whole, self._pieces(), self._service)

    def _service(self) -> Service:
        assert self.instance is not None
        return Service(self.instance, self._pool.scheduling.clock() - self.exchange.started_s)

    def move_from(self, instance: int) -> None:
        """See Movable."""
        if instance != self.instance or self.exchange.state in WAITING | {ExchangeState.DONE}:
            return
        error = self._pool.engines[instance].lost(TimeoutError("it does not answer"))
        self.exchange.hung(error, self._pool.scheduling.clock())
        if self.exchange.state is not ExchangeState.STREAMING:
            self._break_off()

    def close(self) -> None:
        """Release the engine."""
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream up to its end; raises as `start`."""
        exchange = self.exchange
        while exchange.state is not ExchangeState.DONE:
            if exchange.state is not ExchangeState.STREAMING:
                await self._advance()
                continue
            assert self._reply is not None
            try:
                async for piece in self._reply.pieces():
                    if exchange.state is ExchangeState.STREAMING:
                        self._take(piece)
                    if data := exchange.data_to_send():
                        self._is_behind = True
                        yield data
                        self._is_behind = False
                        self._pool.scheduling.became_preemptible(self._queued.id)
                    if exchange.state is not ExchangeState.STREAMING:
                        break
                if exchange.state is ExchangeState.STREAMING:
                    exchange.ended()
            except EngineLostError as error:
                self._lose(error)
        if data := exchange.data_to_send():
            yield data
        if exchange.error is not None:
            raise exchange.error

    async def _advance(self) -> None:
        if self.exchange.state is ExchangeState.PREFILL:
            await self._call_engine()
        else:
            await self._place()

    async def _place(self) -> None:
        scheduling, is_requeued = self._pool.scheduling, self.instance is not None
        if is_requeued:
            if self._reply is not None and self._reply.status in TOO_BUSY:  # keep the place
                await asyncio.sleep(BUSY_S * 2**self.exchange.losses)
            self._leave_engine()
        try:
            place = await scheduling.place(self._queued, is_requeued=is_requeued, only=self._only)
        except InstanceDownError:
            assert self._only is not None
            raise self._pool.response_lost(self._only) from None
        except UnservedModelError:
            raise self._pool.unknown_model() from None
        self.instance, self._priority = place.instance, place.priority
        self.exchange.placed(scheduling.clock())

    def _leave_engine(self) -> None:
        """Release the engine, and count why."""
        self.close()
        if self.exchange.state is ExchangeState.PREEMPTED:
            self._metrics.preempted += 1
        else:
            self._metrics.retried += 1
        self.instance = None

    async def _call_engine(self) -> None:
        assert self.instance is not None
        engine, request = self._pool.engines[self.instance], self._request
        reuse = self._pool.reuse_fields(self._queued, self.instance)
        body = with_fields(self.exchange.body, reuse)
        try:
            async with asyncio.timeout(None) as self._call:
                reply = await engine.send(
                    "POST", request.path, request.headers, body, self._priority
                )
        except TimeoutError:
            return  # `move_from` broke the call off
        except EngineLostError as error:
            self._lose(error)
            return
        finally:
            self._call = None
        self._reply = reply
        self._metrics.note_caches(engine.name, reply.headers)
        if self.exchange.state is ExchangeState.PREFILL:  # otherwise `move_from` came too late
            self.exchange.answered(reply.status, reply.whole)
            if reply.whole is not None and reply.status == 200 and self._first_event is not None:
                self._note_response(id_of(reply.whole))

    def _take(self, piece: bytes) -> None:
        self.exchange.piece(piece)
        assert self._reply is not None
        if self._first_event is not None and self._reply.status == 200:
            self._note_response(self._first_event.id_in(piece))
        self._offer()

    def _lose(self, error: EngineLostError) -> None:
        """Report a loss, unless the exchange has left the engine before."""
        if self.exchange.state in WAITING | {ExchangeState.DONE}:
            return
        assert self.instance is not None
        self.exchange.lost(error, self._pool.scheduling.clock())
        is_complete = self.exchange.state is ExchangeState.DONE and self.exchange.error is None
        if not error.is_final and not is_complete:  # otherwise the engine has done its work
            self._pool.suspect(self.instance, error)

    def _offer(self) -> None:
        """Let the policy preempt the request from now on."""
        scheduling = self._pool.scheduling
        if not scheduling.scheduler.preempts or self._queued.id in scheduling.preemptible:
            return
        if self.exchange.is_preemptible:
            assert self.instance is not None
            scheduling.preemptible[self._queued.id] = Preemptible(
                self._queued, self.instance, self._is_preemptible, self._preempt
            )
            scheduling.carry_out()  # a waiting request may preempt this one

    def _is_preemptible(self) -> bool:
        return not self._is_behind and self.exchange.is_preemptible

    def _preempt(self) -> None:
        self.exchange.preempted(self._pool.scheduling.clock())
        self._break_off()

    def _break_off(self) -> None:
        """Wake the task that waits for the engine."""
        if self._call is not None:
            self._call.reschedule(0.0)
        elif self._reply is not None:
            self._reply.break_off()

    def _note_response(self, id_: str | None) -> None:
        if id_ is not None:
            assert self.instance is not None
            self._on_response(id_, self.instance)
