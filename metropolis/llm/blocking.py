"""What an agent that runs in a thread calls its model with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from threading import get_ident
from typing import Any, TypeVar, Unpack

from metropolis.llm.agent import LLM, Options
from metropolis.llm.base import Completion, Message
from metropolis.llm.call_log import CallRecord, current_strand, in_strand

T = TypeVar("T")


class BlockingLLM:
    """LLM for synchronous agents, which run in threads: every call blocks the calling thread.

    The calls run on `loop`, which must run in another thread. `on_block` is called on that loop
    when a call starts to wait, `on_unblock` before its thread continues; of concurrent calls, which
    threads started by the agent may make, only the first to start and the last to end call them.
    All count as calls of the task that created this object.
    """

    def __init__(
        self,
        llm: LLM,
        loop: asyncio.AbstractEventLoop,
        *,
        on_block: Callable[[], None] = lambda: None,
        on_unblock: Callable[[], None] = lambda: None,
    ) -> None:
        self._llm = llm
        self._loop = loop
        self._on_block = on_block
        self._on_unblock = on_unblock
        self._strand = current_strand()
        self._waiting = 0
        self._calls: set[Future[Any]] = set()
        self._is_cancelled = False
        self.thread: int | None = None
        """Identifier of the agent's thread, once it runs."""

    @property
    def calls(self) -> list[CallRecord]:
        """The calls, in the order of sending."""
        return self._llm.calls

    def cancel(self) -> None:
        """Cancel the calls in flight and refuse further ones: no execution waits for the thread."""
        self._is_cancelled = True
        for call in list(self._calls):
            call.cancel()

    def chat(self, messages: str | Sequence[Message], **options: Unpack[Options]) -> Completion:
        """See `LLM.chat`, which has the same options."""
        return self._wait(lambda: self._llm.chat(messages, **options))

    def complete(self, prompt: str, **options: Unpack[Options]) -> Completion:
        """See `LLM.complete`, which has the same options."""
        return self._wait(lambda: self._llm.complete(prompt, **options))

    def stream(
        self, messages: str | Sequence[Message], **options: Unpack[Options]
    ) -> Iterator[str]:
        """See `LLM.stream`, which has the same options."""
        pieces = self._llm.stream(messages, **options)

        async def next_piece() -> str | None:
            return await anext(pieces, None)

        try:
            while (piece := self._wait(next_piece)) is not None:
                yield piece
        except GeneratorExit:  # perhaps collected in the thread of the loop, which must not wait
            closing = self._await_with_hooks(pieces.aclose)
            try:
                asyncio.run_coroutine_threadsafe(closing, self._loop)
            except RuntimeError:  # the run has ended
                closing.close()
            raise

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._is_cancelled:  # a thread may go on calling: it is not to reach the event loop
            raise self._cancellation()
        call = asyncio.run_coroutine_threadsafe(self._await_with_hooks(start), self._loop)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if self._is_cancelled:
            call.cancel()
        try:
            return call.result()
        except CancelledError:  # of futures: an Exception, which the thread would catch
            raise self._cancellation() from None

    def _cancellation(self) -> BaseException:
        """What ends the calling thread; Python reports others of threads that the agent started."""
        is_own = self.thread in (None, get_ident())
        return asyncio.CancelledError() if is_own else SystemExit()

    async def _await_with_hooks(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._waiting += 1
        if self._strand is not None:
            self._strand.has_computed()
        if self._waiting == 1:
            self._on_block()
        try:
            with in_strand(self._strand):
                return await start()  # only here: a coroutine that never starts is warned of
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._on_unblock()
