"""The path of a request: into its program, through the queue, to an engine, and back.

1. When an engine is lost, an answer of which nothing has been forwarded is requested again from
   another engine; this includes a stream before its first piece.
2. A stream whose first piece has been forwarded cannot be retracted: it ends with EngineLostError
   unless another engine can resume it (`resumable.py`). Policies preempt by the same means.
3. A client that disconnects frees its place in the queue or at the engine immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import TypeVar

from metropolis.gateway.admission import Admission, QueueFullError
from metropolis.gateway.engine_client import PROBE_S, EngineClient, EngineLostError, Reply
from metropolis.gateway.exchange import Exchange
from metropolis.gateway.metrics import Metrics
from metropolis.gateway.models import check_alike, mismatch
from metropolis.gateway.passing import Passed
from metropolis.gateway.programs import ProgramTracker
from metropolis.gateway.request_parsing import of_tenant, read
from metropolis.gateway.responses import Responses
from metropolis.llm.base import UnreachableError
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.faults import PluginError, RequestRefusedError
from metropolis.types import MetropolisError

PROBE_EVERY_S = 2.0
PROBE_LOST_S = 0.5
SWEEP_S = 1.0
INLINE_BYTES = 64 << 10
"""Maximum size of a body parsed on the event loop, which takes at most 1 ms."""
HANGS_LOOKS = 2
"""Consecutive probes without an answer after which an engine counts as hanging."""
LEFT, REFUSED, LOST, FAILED = 499, 429, 502, 500
STATUSES = (
    ((asyncio.CancelledError, ConnectionError, GeneratorExit), LEFT),
    ((EngineLostError, UnreachableError), LOST),
    (QueueFullError, REFUSED),
    (RequestRefusedError, 400),
    (PluginError, FAILED),
    (MetropolisError, 400),
    (BaseException, FAILED),
)
"""Status codes in metrics of requests that no engine has answered completely, by exception."""

T = TypeVar("T")


class Gateway:
    """Engines behind one queue; `said` receives a message when one is lost or returns.

    The dispatcher learns the KV cache size of each engine, unless `learns_capacity` is False.
    Raises MetropolisError when an engine is listed twice.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        admission: Admission,
        idle_s: float,
        said: Callable[[str], None] = lambda _: None,
        *,
        learns_capacity: bool = True,
    ) -> None:
        names = [engine.name for engine in engines]
        for name in names:
            if names.count(name) > 1:
                raise MetropolisError(f"the engine at {name} is listed twice; list it once")
        self.engines, self.admission = engines, admission
        self.programs = ProgramTracker(idle_s, admission.program_ended, self._function_ended)
        self.metrics = Metrics()
        self._said = said
        admission.on_fault = self._tell_fault
        for engine in engines:
            engine.said = said
        self._doubts = [asyncio.Event() for _ in engines]
        """Set to request a probe of the engine."""
        self._failed_looks = [0] * len(engines)
        """Consecutive failed probes by engine; `_silent_looks`: those that timed out."""
        self._silent_looks = [0] * len(engines)
        self.responses = Responses()
        self.passing = [0] * len(engines)
        """Number of unordered requests at each engine."""
        self._relayed: set[Exchange | Passed] = set()
        """Exchanges in progress."""
        self._faulty: set[str] = set()
        """Methods of plug-ins whose fault has been reported."""
        self._refused: list[str | None] = [None] * len(engines)
        """The message reported for an engine that serves other models."""
        self._learns_capacity = learns_capacity
        self._watches: list[asyncio.Task[None]] = []
        self._parsing = asyncio.Semaphore()

    async def start(self) -> None:
        """Probe every engine once, then periodically in the background.

        Raises MetropolisError when the engines serve different models.
        """
        seen = await asyncio.gather(*(engine.probe() for engine in self.engines))
        try:
            check_alike(self.engines)
        except MetropolisError:
            await self.close()
            raise
        instances = range(len(self.engines))
        for instance in instances:
            self._seen(instance, *seen[instance])
        watches = [*map(self._watch, instances), *map(self._count_preemptions, instances)]
        self._watches = [asyncio.ensure_future(watch) for watch in (*watches, self._sweep())]

    async def close(self) -> None:
        """Stop probing and close connections."""
        for watch in self._watches:
            watch.cancel()
        ended = await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self.engines))
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    @asynccontextmanager
    async def reply_to(
        self, path: str, headers: Mapping[str, str], body: bytes, tenant: str = ""
    ) -> AsyncIterator[Exchange]:
        """Yield an engine's answer to the POST of `body`; its program belongs to `tenant`.

        Raises QueueFullError, MetropolisError on an invalid request, EngineLostError when engines
        were lost over the request, and UnknownResponseError.
        """
        asked = of_tenant(await self.parse(len(body), lambda: read(headers, body)), tenant)
        made = self.responses.find(asked.previous, tenant, self.admission.clock())
        if made is not None and asked.program is None:
            asked = replace(asked, program=made.program)
        request = self.programs.enter(asked, self.admission.clock())
        only = None if made is None else made.instance
        relayed = Exchange(self, request, path, headers, only, tenant)
        self._relayed.add(relayed)
        status = 0
        try:
            await relayed.ask(body)
            try:
                await relayed.join()
                status = relayed.reply.status
                yield relayed
                status = status if relayed.is_whole else LOST
            finally:
                relayed.reply.close()
        except BaseException as error:
            became = next(each for kind, each in STATUSES if isinstance(error, kind))
            if not status or became in (LEFT, LOST):
                status = became
            if isinstance(error, PluginError):
                self._tell_fault(error)
            self.metrics.aborted += status == LEFT
            self.metrics.refused += status == REFUSED
            raise
        finally:
            self._relayed.discard(relayed)
            try:
                self._account(request, relayed, status)
            finally:
                self.programs.leave(request, self.admission.clock(), is_answered=status == 200)

    @asynccontextmanager
    async def passed(
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

        Raises EngineLostError when no engine answers, and UnknownResponseError.
        """
        made = self.responses.find(response, tenant, self.admission.clock())
        only = None if made is None else made.instance
        passed = Passed(self, method, path, headers, body, only)
        self._relayed.add(passed)
        status = LOST
        try:
            async with passed.reply() as reply:
                status = reply.status
                yield reply
        except (asyncio.CancelledError, ConnectionError):
            status = LEFT
            raise
        finally:
            self._relayed.discard(passed)
            engine = "" if passed.instance is None else self.engines[passed.instance].name
            self.metrics.passed[engine, route, status] += 1

    def response_lost(self, instance: int) -> EngineLostError:
        """The error for a request that refers to a response of an unresponsive engine."""
        return EngineLostError(
            f"the engine at {self.engines[instance].name}, which generated the response that the "
            "request refers to, does not answer; send the conversation without it"
        )

    async def parse(self, size: int, function: Callable[[], T]) -> T:
        """Return `function()`, which parses a body of `size` bytes: large ones in a thread, one at
        a time, so that the event loop is not blocked."""
        if size <= INLINE_BYTES:
            return function()
        async with self._parsing:
            return await asyncio.to_thread(function)

    async def get(self, path: str, headers: Mapping[str, str]) -> Reply:
        """Return the first available engine's answer to a GET; raises EngineLostError."""
        for instance, engine in enumerate(self.engines):
            if self.admission.is_up[instance]:
                try:
                    async with asyncio.timeout(PROBE_S):
                        return await engine.ask("GET", path, headers)
                except TimeoutError as error:
                    self.doubt(instance, engine.lost(error))
                except EngineLostError as error:
                    self.doubt(instance, error)
        raise EngineLostError("no engine answers")

    def _account(self, request: QueuedRequest, relayed: Exchange, status: int) -> None:
        """Record the end of `request` with `status`; 200 means that it was answered."""
        instance, started_s, now_s = relayed.instance, relayed.started_s, self.admission.clock()
        engine = "" if instance is None else self.engines[instance].name
        self.metrics.requests[engine, self.programs.shown(request.function), status] += 1
        if instance is None:
            return
        if status == 200:
            tokens = relayed.output_tokens
            self.admission.answered(ServedRequest(request, instance, started_s, now_s, tokens))
            self.metrics.queueing.observe(started_s - request.arrived_s)
            self.metrics.latency.observe(now_s - request.arrived_s)
        else:
            self.admission.cancel_placed(request, instance)

    def _tell_fault(self, error: PluginError) -> None:
        """Report a plug-in method's fault once; a refusal concerns only its client."""
        is_refusal = isinstance(error, RequestRefusedError)
        if not is_refusal and error.method not in self._faulty:
            self._faulty.add(error.method)
            self._said(str(error))

    def doubt(self, instance: int, error: EngineLostError) -> None:
        """Send nothing to the engine until it has been probed."""
        if self.admission.is_up[instance]:
            self._said(str(error))
        self.admission.open(instance, False)
        self._doubts[instance].set()

    def _function_ended(self, function: str) -> None:
        self.metrics.forget(function)
        self.admission.function_ended(function)

    async def _look(self, instance: int) -> None:
        self._seen(instance, *await self.engines[instance].probe())

    def _seen(self, instance: int, is_up: bool, sentence: str) -> None:
        refused = self._mismatch(instance) if is_up else None
        if refused is not None:
            is_up, sentence = False, refused
        is_news = self.admission.is_up[instance] != is_up or refused != self._refused[instance]
        self._refused[instance] = refused
        if is_news or not self._watches:  # the first probe
            self._said(sentence)
        if is_up and self._learns_capacity:
            tokens = self.engines[instance].traits.capacity_tokens
            if tokens is not None:
                self.admission.learn_capacity(instance, tokens)
        self._failed_looks[instance] = 0 if is_up else self._failed_looks[instance] + 1
        is_silent = self.engines[instance].is_silent
        self._silent_looks[instance] = self._silent_looks[instance] + 1 if is_silent else 0
        self.admission.open(instance, is_up)
        if self._failed_looks[instance] == 1:
            self.admission.lost(instance)
        if self._silent_looks[instance] >= HANGS_LOOKS and any(self.admission.is_up):
            for relayed in self._relayed:
                relayed.move_from(instance)

    def _mismatch(self, instance: int) -> str | None:
        up = zip(self.engines, self.admission.is_up, strict=True)
        others = [one for one, is_up in up if is_up and one is not self.engines[instance]]
        return mismatch(self.engines[instance], others)

    async def _watch(self, instance: int) -> None:
        while True:
            is_up = self.admission.is_up[instance]
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_EVERY_S if is_up else PROBE_LOST_S):
                    await self._doubts[instance].wait()
            self._doubts[instance].clear()
            await self._look(instance)

    async def _count_preemptions(self, instance: int) -> None:
        """The status monitor of Kairos (§6): preemptions make its dispatcher suspend an engine."""
        engine, before = self.engines[instance], inf  # preemptions before the first count are old
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            count = await engine.preemptions() if engine.is_known else None
            if not self.admission.is_up[instance]:
                before = inf
            elif count is not None:
                if count > before:
                    self.admission.preempted(instance)
                before = count

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.programs.sweep(self.admission.clock())
            self.responses.sweep(self.admission.clock())
            self.admission.pump()
