"""An answer on its way to the client, from one engine or, piece by piece, from several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from metropolis.gateway.asked import output_tokens_in
from metropolis.gateway.engine import EngineLostError, Reply
from metropolis.gateway.partial import LAST, Partial, partial_of
from metropolis.policy.base import QueuedRequest

if TYPE_CHECKING:
    from metropolis.gateway.relay import Gateway

LOSSES_MAX = 5
"""After so many engines were lost over one request it is believed to be what they die of."""
KEPT_BYTES = 4096
"""Of a stream's end, where its usage stands."""


class Relayed:
    """The answer to `request`, and what can be told of it."""

    def __init__(
        self, gateway: Gateway, request: QueuedRequest, path: str, headers: Mapping[str, str]
    ) -> None:
        self._gateway, self._request = gateway, request
        self._path, self._headers = path, headers
        self.reply: Reply
        self.instance: int | None = None
        """Which engine answers; None while it is being placed anew."""
        self.sent_s = 0.0
        self.lost: EngineLostError | None = None
        self.is_whole = False
        self._partial: Partial | None = None
        self._is_preempted = False
        self._end, self._events, self._losses = b"", 0, 0

    async def ask(self, body: bytes) -> None:
        """Have it placed and answered; raises as `Gateway.reply_to`."""
        await self._place(body, anew=False)
        if self.reply.whole is not None:
            self.is_whole, self._end = True, self.reply.whole
        elif self.reply.status == 200:
            self._partial = partial_of(self._path, body)
            self._let_yield()

    async def pieces(self) -> AsyncIterator[bytes]:
        """A stream's, up to its end; raises EngineLostError."""
        while not self.is_whole:
            lost = None
            try:
                async for piece in self.reply.pieces():
                    whole = piece if self._partial is None else self._partial.take(piece)
                    if whole:
                        self._count(whole)
                        yield whole
                if self._partial is not None and self._partial.cut() and not self._is_preempted:
                    yield self._partial.cut()
            except EngineLostError as error:
                lost = error
            if lost is None and not self._is_preempted:
                self.is_whole = True
            elif self._partial is None or not self._partial.is_understood:
                self.lost = lost or EngineLostError("an answer that was preempted makes no sense")
                raise self.lost
            elif self._partial.is_at_its_end:
                self.is_whole = True
                if not self._end.endswith(LAST):
                    yield LAST
            else:
                await self._go_on(lost, self._partial)

    @property
    def output_tokens(self) -> int:
        """As the engine counts them, or as many as a stream had pieces."""
        told = output_tokens_in(self._end)
        return max(1, self._events - 1) if told is None else told

    def _count(self, piece: bytes) -> None:
        self._events += piece.count(b"data:")
        self._end = (self._end + piece)[-KEPT_BYTES:]

    async def _place(self, body: bytes, *, anew: bool) -> None:
        self.instance, self.sent_s, self.reply = await self._gateway.ask(
            self._request, self._path, self._headers, body, anew=anew
        )

    async def _go_on(self, lost: EngineLostError | None, partial: Partial) -> None:
        """Ask for the rest, wherever there is room."""
        assert self.instance is not None
        self.reply.close()
        if self._is_preempted:
            self._gateway.figures.preempted += 1
        else:
            assert lost is not None
            self._losses += 1
            if self._losses == LOSSES_MAX:
                self.lost = lost
                raise lost
            self._gateway.doubt(self.instance, lost)
            self._gateway.figures.retried += 1
        instance, self.instance, self._is_preempted = self.instance, None, False
        self._gateway.admission.put_back(self._request, instance)
        await self._place(partial.rest(), anew=True)
        if self.reply.whole is not None:
            raise EngineLostError(f"the rest of an answer was refused: HTTP {self.reply.status}")
        self._let_yield()

    def _let_yield(self) -> None:
        admission = self._gateway.admission
        if self._partial is not None and self.instance is not None and admission.policy.preempts:
            admission.yields[self._request.id] = self._request, self.instance, self._preempt
            admission.pump()  # somebody may wait for just that

    def _preempt(self) -> None:
        self._is_preempted = True
        self.reply.break_off()
