"""An answer in transit to its client, from one engine or in parts from several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from metropolis.gateway.admission import ClosedError, Yielding
from metropolis.gateway.engine_client import LIMITS, EngineLostError, Reply
from metropolis.gateway.request_parsing import output_tokens_in
from metropolis.gateway.responses import FirstEvent, id_of
from metropolis.gateway.resumable import continuable
from metropolis.gateway.routes import RESPONSES
from metropolis.gateway.stream_state import Partial
from metropolis.policy.base import QueuedRequest
from metropolis.policy.faults import rank_of

if TYPE_CHECKING:
    from metropolis.gateway.proxy import Gateway

LOSSES_MAX = 5
"""Engine losses after which a request is treated as poisonous."""
KEPT_BYTES = 4096
"""How much of a stream's end is kept: it contains the usage."""


class Exchange:
    """The answer to `request` and its statistics."""

    def __init__(
        self,
        gateway: Gateway,
        request: QueuedRequest,
        path: str,
        headers: Mapping[str, str],
        only: int | None = None,
        tenant: str = "",
    ) -> None:
        self._gateway, self._request, self._only = gateway, request, only
        self._tenant = tenant
        self._path, self._headers = path, headers
        self.reply: Reply
        self.instance: int | None = None
        """The engine that has the request; None while it waits."""
        self._sent_s = self._served_s = 0.0
        """When that engine got it; total time at engines that were left during their answer."""
        self._asking: asyncio.Timeout | None = None
        """Set until the engine begins to answer."""
        self.is_whole = False
        self._partial: Partial | None = None
        self._is_preempted = self._is_yielding = self._is_moved = self._is_behind = False
        """`_is_behind`: the client has not read all that was sent."""
        self._end, self._events, self._losses = b"", 0, 0
        self._first_event = FirstEvent()

    @property
    def started_s(self) -> float:
        """When an uninterrupted answer would have started (see `ServedRequest.started_s`)."""
        return self._sent_s - self._served_s

    async def ask(self, body: bytes) -> None:
        """Place the request, on the `only` engine if given, and start its answer; raises as
        `Gateway.reply_to`."""
        gateway = self._gateway
        preempts = gateway.admission.policy.preempts
        is_known = all(engine.is_known for engine in gateway.engines)
        request = await gateway.parse(
            len(body),
            lambda: continuable(self._path, body, preempts=preempts, is_known=is_known),
        )
        await self._place(body if request is None else request.first(), anew=False)
        if self.reply.whole is not None:
            self.is_whole, self._end = True, self.reply.whole
            if self._is_response:
                self._keep_response(id_of(self.reply.whole))
        elif self.reply.status == 200 and request is not None:
            self._partial = Partial(request)

    async def join(self) -> None:
        """Collect the whole answer if only the engine streams and the client does not."""
        if self._partial is not None and self._partial.is_joined:
            async for _ in self.pieces():
                pass
            self.reply.status, self.reply.whole = self._partial.whole()
            kept = [(k, v) for k, v in self.reply.headers if k != "content-type"]
            self.reply.headers = [*kept, ("content-type", "application/json")]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream up to its end; raises EngineLostError."""
        partial = self._partial
        while not self.is_whole:
            lost = None
            try:
                async for piece in self.reply.pieces():
                    whole = self._count(piece) if partial is None else self._take(piece, partial)
                    if whole:
                        self._is_behind = True
                        yield whole
                        self._is_behind = False
                if partial is not None and partial.cut() and not self._is_preempted:
                    yield partial.cut()
            except EngineLostError as error:
                lost = error
            if lost is None and not self._is_preempted:
                self.is_whole = True
            elif partial is not None and partial.is_at_its_end:
                self.is_whole = True
                if ending := partial.ending():
                    yield ending
            elif partial is None or not partial.can_go_on:
                if lost is not None:
                    self._doubt(lost)
                raise lost or EngineLostError("an answer that was preempted is invalid")
            else:
                await self._go_on(lost, partial)

    def move_from(self, instance: int) -> None:
        """Treat `instance`, which hangs, as lost if it has the request and another can resume."""
        if instance != self.instance:
            return
        if self._asking is not None:
            self._is_moved = True
            self._asking.reschedule(0.0)
            self._asking = None
        elif self._partial is not None and self._partial.can_go_on:
            self._is_moved = True
            self.reply.break_off()

    @property
    def output_tokens(self) -> int:
        """The engine's count, or the number of a stream's events without one."""
        if self._partial is not None:
            return max(1, self._partial.output_tokens)
        told = output_tokens_in(self._end)
        return max(1, self._events - 1) if told is None else told

    def _take(self, piece: bytes, partial: Partial) -> bytes:
        whole = partial.take(piece)
        if partial.held_bytes > LIMITS.event_bytes:
            sentence = f"an answer has more than {LIMITS.event_bytes:,} bytes of text or event"
            raise EngineLostError(sentence, is_final=True)
        if not self._is_yielding and partial.can_leave:
            self._let_yield()
        return b"" if partial.is_joined else whole

    @property
    def _is_response(self) -> bool:
        return self.reply.status == 200 and self._path.partition("?")[0] == RESPONSES

    def _keep_response(self, id_: str | None) -> None:
        """Route later requests that refer to this response to its engine."""
        if id_ is not None:
            assert self.instance is not None
            now_s = self._gateway.admission.clock()
            self._gateway.responses.add(
                id_, self.instance, self._request.program, self._tenant, now_s
            )

    def _count(self, piece: bytes) -> bytes:
        if self._is_response:
            self._keep_response(self._first_event.id_in(piece))
        self._events += piece.count(b"data:")
        self._end = (self._end + piece)[-KEPT_BYTES:]
        return piece

    async def _place(self, body: bytes, *, anew: bool) -> None:
        """Send `body` to the engine that admission selects, until LOSSES_MAX engines were lost."""
        admission = self._gateway.admission
        while True:
            try:
                self.instance = await admission.place(self._request, anew=anew, only=self._only)
            except ClosedError:
                assert self._only is not None
                raise self._gateway.response_lost(self._only) from None
            self._sent_s = admission.clock()
            rank = rank_of(admission.policy, self._request)
            engine = self._gateway.engines[self.instance]
            try:
                async with asyncio.timeout(None) as self._asking:
                    self.reply = await engine.ask("POST", self._path, self._headers, body, rank)
                return
            except TimeoutError:
                self._lose(engine.lost(TimeoutError("it does not answer")))
            except EngineLostError as error:
                self._lose(error)
            finally:
                self._asking = None
            anew = True

    async def _go_on(self, lost: EngineLostError | None, partial: Partial) -> None:
        """Request the rest of the answer from the engine that admission selects."""
        self.reply.close()
        self._served_s += self._gateway.admission.clock() - self._sent_s
        if self._is_preempted:
            self._gateway.metrics.preempted += 1
            self._requeue()
        else:
            assert lost is not None
            self._lose(lost)
        self._is_preempted = self._is_yielding = self._is_moved = False
        await self._place(partial.rest(), anew=True)
        if self.reply.whole is not None:
            raise EngineLostError(f"the rest of an answer was refused: HTTP {self.reply.status}")

    def _lose(self, error: EngineLostError) -> None:
        """Requeue after an engine loss; raises `error` if it is final or the last allowed one."""
        if not self._is_moved:  # otherwise the engine is known to hang, and may have recovered
            self._doubt(error)
        self._is_moved = False
        self._losses += 1
        if self._losses == LOSSES_MAX or error.is_final:
            raise error
        self._gateway.metrics.retried += 1
        self._requeue()

    def _doubt(self, error: EngineLostError) -> None:
        assert self.instance is not None
        if error.is_final:
            return  # the answer is at fault
        self._gateway.doubt(self.instance, error)

    def _requeue(self) -> None:
        assert self.instance is not None
        instance, self.instance = self.instance, None
        self._gateway.admission.requeue(self._request, instance)

    def _let_yield(self) -> None:
        self._is_yielding = True
        admission = self._gateway.admission
        if self.instance is not None and admission.policy.preempts:
            admission.yields[self._request.id] = Yielding(
                self._request, self.instance, self._can_leave, self._preempt
            )
            admission.pump()  # a waiting request may preempt this one

    def _can_leave(self) -> bool:
        return not self._is_behind and self._partial is not None and self._partial.can_leave

    def _preempt(self) -> None:
        self._is_preempted = True
        self.reply.break_off()
