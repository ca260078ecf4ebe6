"""Selects the next request and its engine: a policy's queue before a dispatcher, without I/O.

1. An engine has at most `at_once` requests; one at its bound, or lost, is closed to the dispatcher.
2. The first request in the policy's order goes where the dispatcher places it, otherwise all wait;
   only requests pinned to one engine wait for it aside.
3. Every placed request ends exactly once: answered, cancelled, or requeued.
4. A preempting policy requeues the lowest-ranked request in `yields` that can leave, one at a time,
   while the first waiting request ranks before it and no engine is open.
5. A request fails instead of hanging when the policy or dispatcher cannot rank or place it. An
   error in one of their notification methods goes to `on_fault` and fails no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import NamedTuple

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.faults import holding, placed_by
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import P, PluginError, call, due_s_of, rank_of
from metropolis.policy.queue import RequestQueue
from metropolis.types import MetropolisError

HOLD_S = 10.0
"""Maximum time for which a dispatcher may hold requests back while all engines are idle."""
GONE_MAX = 1000
"""Maximum number of cancelled requests in the queue in excess of the waiting ones."""


class QueueFullError(MetropolisError):
    """The queue is full."""


class ClosedError(MetropolisError):
    """The engine to which a request is pinned does not answer."""


class Yielding(NamedTuple):
    """A running request that may be preempted."""

    request: QueuedRequest
    instance: int
    can_leave: Callable[[], bool]
    """Returns whether it can be preempted now."""
    leave: Callable[[], None]
    """Preempts it."""


class Admission:
    """Queues requests and places them on engines, which are closed until `open` is called."""

    def __init__(
        self,
        policy: Policy,
        dispatcher: Dispatcher,
        at_once: int,
        queue_limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy, self.clock = policy, clock
        self._dispatcher, self._at_once, self._queue_limit = dispatcher, at_once, queue_limit
        self._queue = RequestQueue(policy)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        """By request id; the queue may also hold cancelled requests, which are absent here."""
        self.yields: dict[int, Yielding] = {}
        """By request id."""
        self._leaving: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._held_since_s: float | None = None
        """When the dispatcher began to hold requests back although all engines are idle."""
        self.at_work = [0] * len(dispatcher.fleet)
        self.is_up = [False] * len(dispatcher.fleet)
        self._only: dict[int, int] = {}
        """The engine of each pinned request, by request id."""
        self._aside: list[dict[int, QueuedRequest]] = [{} for _ in self.is_up]
        """Pinned requests that wait for room at their engine, by engine and request id."""
        self._freed: set[int] = set()
        """Engines that may have room for those."""
        dispatcher.closed = set(range(len(dispatcher.fleet)))
        self.on_fault: Callable[[PluginError], None] = _raise
        """Receives the errors of plug-ins that concern no single request."""

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    async def place(
        self, request: QueuedRequest, *, anew: bool = False, only: int | None = None
    ) -> int:
        """Wait for capacity and return the engine for `request`: any, or `only` that one.

        `anew` marks a request that was placed before and is exempt from the queue's limit.
        Raises ClosedError when the `only` engine does not answer, QueueFullError when the queue is
        full, and PluginError.
        """
        if len(self._waiting) >= self._queue_limit and not anew:
            raise QueueFullError(f"{len(self._waiting)} requests wait already; try again later")
        if only is not None and not self.is_up[only]:
            raise ClosedError(f"instance {only} does not answer")
        self._push(request, anew=anew)
        if only is not None:
            self._only[request.id] = only
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = turn
        try:
            self.pump()
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.cancel_placed(request, turn.result())  # placed just before the cancellation
            else:
                self._waiting.pop(request.id, None)
                self._tell(self.policy.cancelled, request)
                if len(self._queue) > 2 * len(self._waiting) + GONE_MAX:
                    self._queue.keep(self._waiting)
            raise
        finally:
            if only is not None:
                del self._only[request.id]
                self._aside[only].pop(request.id, None)

    def answered(self, served: ServedRequest) -> None:
        """Record that a placed request was answered."""
        self._tell(self.policy.completed, served)
        self._leave(served.request, served.instance)
        self._tell(self._dispatcher.completed, served)
        self.pump()

    def requeue(self, request: QueuedRequest, instance: int) -> None:
        """Record that `request` left `instance` and will be placed again."""
        now_s = self.clock()
        self._tell(self.policy.preempted, request, now_s)
        self._leave(request, instance)
        self._tell(self._dispatcher.cancelled, request, instance, now_s)
        self.pump()

    def function_ended(self, function: str) -> None:
        """Record that `function` expired: no request for it has arrived for long."""
        self._tell(self.policy.function_ended, function)
        self._tell(self._dispatcher.function_ended, function)

    def program_ended(self, program: str) -> None:
        """Record that `program` has ended."""
        self._tell(self.policy.program_ended, program)
        self._tell(self._dispatcher.program_ended, program)

    def cancel_placed(self, request: QueuedRequest, instance: int) -> None:
        """Record that `request` left `instance` and was cancelled."""
        self._tell(self.policy.cancelled, request)
        self._leave(request, instance)
        self._tell(self._dispatcher.cancelled, request, instance, self.clock())
        self.pump()

    def open(self, instance: int, is_up: bool) -> None:
        """Set whether an engine answers."""
        self.is_up[instance] = is_up
        self._look_at(instance)
        if not is_up and self._only:
            ids = [id_ for id_, only in self._only.items() if only == instance]
            self._fail(ClosedError(f"instance {instance} does not answer"), ids)
        self._freed.add(instance)
        self.pump()

    @property
    def capacity_tokens(self) -> list[int]:
        """KV cache sizes of the engines that the dispatcher uses."""
        return [each.capacity_tokens for each in self._dispatcher.fleet.instances]

    def learn_capacity(self, instance: int, tokens: int) -> None:
        """Pass an engine's changed KV cache size to the dispatcher."""
        instances = [*self._dispatcher.fleet.instances]
        if tokens != instances[instance].capacity_tokens:
            instances[instance] = replace(instances[instance], capacity_tokens=tokens)
            self._dispatcher.fleet = Fleet(tuple(instances))

    def lost(self, instance: int) -> None:
        """Record that an engine does not answer and may have lost its memory."""
        self._tell(self._dispatcher.lost, instance)

    def preempted(self, instance: int) -> None:
        """Record that an engine preempted requests for lack of memory."""
        self._tell(self._dispatcher.preempted, instance, self.clock())

    def pump(self) -> None:
        """Place as many waiting requests as possible."""
        now_s = self.clock()
        try:
            call(self.policy.passed, now_s)
            self._place_all(now_s)
            self._expect(now_s)
        except PluginError as error:  # later attempts would fail, too
            self._fail(error, [*self._waiting])
            self.on_fault(error)

    def _place_all(self, now_s: float) -> None:
        held_since_s, self._held_since_s = self._held_since_s, None
        self._take_up()
        while (request := self._first()) is not None:
            if len(self._dispatcher.closed) == len(self.at_work):
                self._make_place(request)
                break
            only = self._only.get(request.id)
            try:
                instance = self._placed(request, only, now_s)
            except PluginError as error:
                self._fail(error, [request.id])
                continue
            if instance is None and only is not None and self.at_work[only]:
                self._aside[only][request.id] = self._queue.pop()
                continue
            if instance is None:
                if not any(self.at_work):
                    self._held_since_s = now_s if held_since_s is None else held_since_s
                    if now_s - self._held_since_s >= HOLD_S:
                        raise holding(self._dispatcher, len(self._waiting))
                break
            self.at_work[instance] += 1
            self._look_at(instance)
            self._waiting.pop(request.id).set_result(instance)
            self._queue.pop()
            self._tell(self.policy.started, request, now_s)

    def _placed(self, request: QueuedRequest, only: int | None, now_s: float) -> int | None:
        """Ask the dispatcher for an engine; for a pinned request, all others are closed."""
        if only is None:
            return placed_by(self._dispatcher, request, now_s)
        closed = self._dispatcher.closed
        others = set(range(len(self.at_work))) - {only}
        self._dispatcher.closed = closed | others
        try:
            if only in closed:
                return None
            return placed_by(self._dispatcher, request, now_s)
        finally:
            self._dispatcher.closed = closed

    def _take_up(self) -> None:
        """Return requests that wait aside to the queue if their engine may have room."""
        while self._freed:
            instance = self._freed.pop()
            aside, self._aside[instance] = self._aside[instance], {}
            for request in aside.values():
                self._queue.push_back(request)

    def _fail(self, error: MetropolisError, ids: Iterable[int]) -> None:
        for id_ in ids:
            turn = self._waiting.pop(id_, None)
            if turn is not None and not turn.done():
                turn.set_exception(error)
        self._queue.keep(self._waiting)

    def _first(self) -> QueuedRequest | None:
        """Return the next waiting request; drop cancelled ones before it."""
        while self._queue:
            request = self._queue.first()
            turn = self._waiting.get(request.id)
            if turn is not None and not turn.cancelled():
                return request
            self._queue.pop()
        return None

    def _make_place(self, first: QueuedRequest) -> None:
        if not self.policy.preempts or self._leaving is not None:
            return
        ranked = [
            (self._place(one.request), one.leave)
            for one in self.yields.values()
            if self.is_up[one.instance] and one.can_leave()
        ]
        place, leave = max(ranked, key=itemgetter(0), default=(self._place(first), None))
        if leave is not None and place > self._place(first):
            self._leaving = place[-1]
            leave()

    def _place(self, request: QueuedRequest) -> tuple[int, float, int]:
        return rank_of(self.policy, request), request.arrived_s, request.id

    def _push(self, request: QueuedRequest, *, anew: bool) -> None:
        try:
            if anew:
                self._queue.push_back(request)
            else:
                self._queue.push(request)
        except PluginError:  # it cannot be ranked
            self._tell(self.policy.cancelled, request)
            raise

    def _expect(self, now_s: float) -> None:
        """Schedule `pump` for the time at which ranks change next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and (due_s := due_s_of(self.policy)) < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - now_s), self.pump)

    def _leave(self, request: QueuedRequest, instance: int) -> None:
        """Free the place of `request` at `instance`."""
        self.yields.pop(request.id, None)
        if self._leaving == request.id:
            self._leaving = None
        self.at_work[instance] -= 1
        self._look_at(instance)
        self._freed.add(instance)

    def _tell(self, method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Notify a plug-in; its error goes to `on_fault` and fails no request."""
        try:
            call(method, *args, **kwargs)
        except PluginError as error:
            self.on_fault(error)

    def _look_at(self, instance: int) -> None:
        if self.is_up[instance] and self.at_work[instance] < self._at_once:
            self._dispatcher.closed.discard(instance)
        else:
            self._dispatcher.closed.add(instance)


def _raise(error: PluginError) -> None:
    raise error
