"""Drives the scheduler in real time: events of exchanges in, its commands carried out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from metropolis.dispatch.base import Dispatcher
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.scheduler.base import InstanceLimits, Place, Preempt, Reject, Report
from metropolis.scheduler.scheduler import Scheduler
from metropolis.types import MetropolisError

DEFERRAL_MAX_S = 10.0
"""Maximum time for which a dispatcher may defer requests while all engines are idle."""


class QueueFullError(MetropolisError):
    """The queue is full."""


class Preemptible(NamedTuple):
    """A running request that may be preempted."""

    request: QueuedRequest
    instance: int
    is_preemptible: Callable[[], bool]
    """Returns whether it can be preempted now."""
    preempt: Callable[[], None]
    """Preempts it."""


class SchedulerDriver:
    """Queues requests and places them on engines, which are down until `set_is_up` is called.

    An engine has at most `at_once` requests. At most `queue_limit` requests wait; for a needed one,
    speculative ones do not count.
    """

    def __init__(
        self,
        policy: Policy,
        dispatcher: Dispatcher,
        at_once: int,
        queue_limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock, self._queue_limit = clock, queue_limit
        limits = [InstanceLimits(at_once, always_preemptible=False)] * len(dispatcher.fleet)
        self.scheduler = Scheduler(policy, dispatcher, limits, deferral_max_s=DEFERRAL_MAX_S)
        self._placements: dict[int, asyncio.Future[Place]] = {}
        """Results of pending calls of `place`, by request id."""
        self.preemptible: dict[int, Preemptible] = {}
        """By request id."""
        self._refused: set[int] = set()
        """Ids of preemptible requests that could not be preempted at the latest decision."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of waiting requests."""
        return self.scheduler.waiting

    @property
    def in_flight(self) -> list[int]:
        """Number of requests at each engine."""
        return self.scheduler.in_flight

    @property
    def is_up(self) -> list[bool]:
        """Whether each engine answers."""
        return self.scheduler.is_up

    async def place(
        self, request: QueuedRequest, *, is_requeued: bool = False, only: int | None = None
    ) -> Place:
        """Wait for capacity and return the command to submit `request`: to any engine, or `only`.

        `is_requeued`: the request has left its engine unfinished. Raises InstanceDownError when the
        `only` engine does not answer, QueueFullError when the queue is full, and PluginError.
        """
        ahead = len(self) - (0 if request.speculative else self.scheduler.waiting_speculative)
        if not is_requeued and ahead >= self._queue_limit:
            raise QueueFullError(f"{ahead} requests wait already; try again later")
        placement: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._placements[request.id] = placement
        try:
            if is_requeued:
                self.preemptible.pop(request.id, None)
                # engines count their tokens
                self.scheduler.interrupted(request.id, 0, self.clock())
            else:
                self.scheduler.arrived(request, only)
            self.carry_out()
            return await placement
        except BaseException:  # it was cancelled or refused, or a plug-in failed
            self.cancel(request)
            raise
        finally:
            del self._placements[request.id]

    def completed(self, served: ServedRequest) -> None:
        """Record that a placed request was answered."""
        self.preemptible.pop(served.request.id, None)
        self.scheduler.finished(served)
        self.carry_out()

    def promote(self, request_id: int) -> None:
        """Record that a speculative request is needed."""
        self.scheduler.promoted(request_id, self.clock())
        self.carry_out()

    def cancel(self, request: QueuedRequest) -> None:
        """Record that a waiting or placed request was cancelled."""
        self.preemptible.pop(request.id, None)
        self.scheduler.cancelled(request.id, self.clock())
        self.carry_out()

    def set_is_up(self, instance: int, is_up: bool) -> None:
        """Set whether an engine answers."""
        if is_up:
            self.scheduler.instance_up(instance, self.clock())
        else:
            self.scheduler.instance_down(instance, self.clock())
        self.carry_out()

    @property
    def capacity_tokens(self) -> list[int]:
        """KV cache sizes of the engines that the dispatcher uses."""
        return [each.capacity_tokens for each in self.scheduler.fleet.instances]

    def engine_preempted(self, instance: int) -> None:
        """Record that an engine preempted requests for lack of memory."""
        self.scheduler.instance_preempted(instance, self.clock())

    def carry_out(self) -> None:
        """Carry out the scheduler's commands."""
        now_s = self.clock()
        is_reported = True
        while is_reported:
            is_reported = False
            for command in self.scheduler.schedule(now_s):
                match command:
                    case Place(request) as place:
                        placement = self._placements[request.id]
                        if not placement.cancelled():  # otherwise `place` will cancel the request
                            placement.set_result(place)
                    case Preempt(request):
                        self.preemptible.pop(request.id).preempt()
                    case Reject(request, error):
                        placement = self._placements[request.id]
                        if not placement.cancelled():
                            placement.set_exception(error)
                    case Report(instance):
                        # engines count their tokens
                        self.scheduler.progressed(instance, 0, self._not_preemptible(instance))
                        is_reported = True
        self._set_timer(now_s)

    def _not_preemptible(self, instance: int) -> set[int]:
        """Ids of the engine's requests that cannot be preempted now."""
        running = self.scheduler.running(instance)
        offered = {id_: one for id_ in running if (one := self.preemptible.get(id_)) is not None}
        refused = {id_ for id_, one in offered.items() if not one.is_preemptible()}
        self._refused = (self._refused & self.preemptible.keys()) | refused
        return refused | (set(running) - offered.keys())

    def became_preemptible(self, request_id: int) -> None:
        """Record that a request can be preempted again; decide again if the latest decision was
        made without it."""
        if request_id in self._refused:
            self._refused.discard(request_id)
            self.carry_out()

    def _set_timer(self, now_s: float) -> None:
        """Schedule `carry_out` for the time at which ranks change next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due_s := self.scheduler.due_s) < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - now_s), self.carry_out)
