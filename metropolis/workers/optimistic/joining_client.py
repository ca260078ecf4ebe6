"""The client of agents that run ahead: a repeated execution that sends an equal request gets the
answer that is known, or waits for the one in flight.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, replace

from metropolis.llm.base import Backend, Completion, Promoter, Request
from metropolis.llm.call_log import CallRecord
from metropolis.llm.client import Client
from metropolis.llm.journal import Key, key_of
from metropolis.llm.model_choice import ModelChoice
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.workers.optimistic.call_gate import CallGate
from metropolis.workers.optimistic.kept_answers import KeptAnswers


@dataclass(eq=False)
class _InFlight:
    request: Request
    task: asyncio.Task[Completion]
    waiting: int = 0
    """Executions that wait for it."""


class JoiningClient:
    """Sends equal requests of an agent-step once; see `metropolis.llm.agent.Sender`.

    A request that no execution waits for any more stays in flight until `cancel_orphans`.
    """

    def __init__(
        self, client: Client, answers: KeptAnswers, gate: CallGate, clock: Callable[[], float]
    ) -> None:
        """`client` keeps its answers in `answers`; `clock` gives the times of requests."""
        self._client, self._clock = client, clock
        self.answers, self.gate = answers, gate
        client.journal = answers
        gate.progress = self._progress
        self._ended = 0
        """Requests that have ended."""
        self.on_orphan: Callable[[], None] = lambda: None
        """Called when no execution waits for a request any more."""
        self._sent: defaultdict[tuple[AgentId, Step], list[CallRecord]] = defaultdict(list)
        """(agent, step) -> the requests sent for it, without those whose answer was known."""
        self._in_flight: dict[Key, _InFlight] = {}
        self._orphans: dict[Key, _InFlight] = {}
        self._given_up: set[Key] = set()
        """Requests that were sent as speculative, and that a needed execution gave up."""
        self._is_cancelling = False
        self._streamed: dict[int, Request] = {}
        """By identity."""
        self._first_open: Counter[AgentId] = Counter()
        """Agent -> its first step that is not final."""

    @property
    def backend(self) -> Backend:
        """See Sender."""
        return self._client.backend

    @property
    def models(self) -> ModelChoice:
        """See Sender."""
        return self._client.models

    @property
    def failure(self) -> MetropolisError | None:
        """See Sender."""
        return self._client.failure

    async def stream(
        self, request: Request, on_end: Callable[[Completion], object]
    ) -> AsyncGenerator[str | Completion, None]:
        """See Sender; streams are not joined."""
        key = key_of(request)
        request = await self._admit(request, key)
        record = self._record(request, key)
        self._streamed[id(request)] = request

        def end(completion: Completion) -> object:
            record.end(self._clock(), completion)
            return on_end(completion)

        try:
            async with aclosing(self._client.stream(request, end)) as items:
                async for item in items:
                    yield item
        finally:
            if record.completed is None:
                record.completed = self._clock()
            del self._streamed[id(request)]
            self._ended += 1

    async def call(self, request: Request) -> Completion:
        """See Sender."""
        key = key_of(request)
        request = await self._admit(request, key)
        one = self._in_flight.get(key)
        if one is None:
            record = self._record(request, key)
            task = Context().run(asyncio.ensure_future, self._client.answer(request))
            one = self._in_flight[key] = _InFlight(request, task)
            task.add_done_callback(lambda task: self._end(key, task, record))
        elif not request.speculative:
            self.promote(key.agent, key.step)
        one.waiting += 1
        self._orphans.pop(key, None)
        try:
            return await asyncio.shield(one.task)
        finally:
            one.waiting -= 1
            if not one.task.done():
                if one.request.speculative and not request.speculative:
                    self._given_up.add(key)
                if not one.waiting:
                    self._orphans[key] = one
                    self.on_orphan()

    async def _admit(self, request: Request, key: Key) -> Request:
        """`request`, once it may be sent."""
        self._check_open(key)
        if request.speculative and key not in self._in_flight and not self._is_known(key):
            request = replace(request, speculative=not await self.gate.enter(key))
            self._check_open(key)
        return request

    def commit(self, agent: AgentId, step: Step) -> list[CallRecord]:
        """The step is final; returns the requests that were sent for it."""
        self._first_open[agent] = step + 1
        return self._sent.pop((agent, step), [])

    def _record(self, request: Request, key: Key) -> CallRecord:
        """The record of a request that is sent now."""
        model = request.model or self.backend.name
        record = CallRecord(request.function, model, (), self._clock())
        if not self._is_known(key):
            self._sent[key.agent, key.step].append(record)
        return record

    def _check_open(self, key: Key) -> None:
        """Cancel what is left of an aborted execution, a task or thread, if its step is final."""
        if key.step < self._first_open[key.agent]:
            raise asyncio.CancelledError

    def _is_known(self, key: Key) -> bool:
        return self.answers.get(key) is not None

    def promote(self, agent: AgentId, step: Step) -> None:
        """The requests of an agent-step are needed."""
        self.gate.promote(agent, step)
        backend = self._client.backend
        if isinstance(backend, Promoter):
            for one in (
                *(call.request for call in self._in_flight.values()),
                *self._streamed.values(),
            ):
                if (one.agent, one.step) == (agent, step) and one.speculative:
                    backend.promote(one)
                    return  # with the others of the agent-step

    def cancel_orphans(self, is_busy: Callable[[AgentId, Step], bool]) -> None:
        """Cancel abandoned requests, unless a busy execution could still make them."""
        if not self._is_cancelling and self._orphans:
            self._is_cancelling = True
            loop = asyncio.get_running_loop()
            # A timer runs after the sockets were read, and the task that got an answer before what
            # the timer calls soon: no answer is lost that has been read.
            loop.call_later(0, loop.call_soon, self._cancel_orphans, is_busy)

    async def end(self) -> None:
        """Cancel all requests in flight: only tasks that agents have left behind wait for them."""
        tasks = [one.task for one in self._in_flight.values()]
        if tasks:
            self._orphans, self._is_cancelling = dict(self._in_flight), False
            self.cancel_orphans(lambda *_: False)
            await asyncio.wait(tasks)

    def _cancel_orphans(self, is_busy: Callable[[AgentId, Step], bool]) -> None:
        self._is_cancelling = False
        for key, one in list(self._orphans.items()):
            if not is_busy(key.agent, key.step):
                del self._orphans[key], self._in_flight[key]  # an equal request is sent anew
                one.task.cancel()

    def has_given_up(self, agent: AgentId, step: Step) -> bool:
        """Whether a needed execution gave up a request that was sent as speculative.

        With the rank of others the request might have been answered in time.
        """
        return any((key.agent, key.step) == (agent, step) for key in self._given_up)

    def resend(self, agent: AgentId, step: Step) -> None:
        """Cancel the requests that were given up, so that the repeated execution resends them."""
        for key in [key for key in self._given_up if (key.agent, key.step) == (agent, step)]:
            self._given_up.remove(key)
            if (one := self._in_flight.pop(key, None)) is not None:
                self._orphans.pop(key, None)
                one.task.cancel()

    def _progress(self) -> int | None:
        return None if self._in_flight or self._streamed else self._ended

    def _end(self, key: Key, task: asyncio.Task[Completion], record: CallRecord) -> None:
        self._ended += 1
        one = self._in_flight.get(key)
        if one is not None and one.task is task:
            del self._in_flight[key]
            self._orphans.pop(key, None)
        if task.cancelled():
            record.completed = self._clock()
        else:
            # This also reads the exception: asyncio warns of one that no execution reads.
            record.end(self._clock(), None if task.exception() else task.result())
