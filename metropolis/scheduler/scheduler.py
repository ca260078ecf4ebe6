"""The scheduler: events in, commands out. It has no clock and does no I/O.

A driver reports every event with its time, and carries out the commands that `schedule` returns.
The gateway drives it in real time, the simulation in virtual time.

1. The policy orders the waiting requests. The first goes where the dispatcher places it. While the
   dispatcher defers it, all requests behind it that the same instances may serve wait.
2. With a policy that does not preempt, an instance at its limit is closed to the dispatcher:
   requests are placed as late as possible. Instances let placed requests wait for memory in the
   order of their ranks (AI Metropolis §3.4); those that can are told when ranks change.
3. With a policy that preempts, requests are placed at once (Agentix §4.3). Those without room wait
   at their instance. While the first of them has none, the last-ranked running request is preempted
   if it ranks behind it, and waits at the same instance (Agentix §4.2).
4. A request whose instance is lost is placed again. When an instance comes up, or serves more
   models, the requests that wait for room at others and that it may serve are placed again.
5. A request ends once: it is finished, cancelled, or rejected because a plug-in failed, its only
   instance is down, or no instance serves or ever listed its model.

| state      | meaning               | command -> state      | finished | interrupted | up, down |
|------------|-----------------------|-----------------------|----------|-------------|----------|
| QUEUED     | waits to be placed    | -       -> PLACED     | -        | -           | -        |
| PLACED     | waits for room there  | Place   -> RUNNING    | -        | -           | QUEUED   |
| RUNNING    | its instance has it   | Preempt -> PREEMPTING | ends     | QUEUED      | -        |
| PREEMPTING | it is being preempted |                       | ends     | PLACED      | -        |

`cancelled` ends a request in any state. Speculative requests go behind all others, under every
policy, until they are `promoted`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf

from metropolis.dispatch.base import Dispatcher
from metropolis.dispatch.faults import endless_deferral
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import PluginError, call, next_due_s, raise_fault, read
from metropolis.policy.queue import RequestQueue, priority_of
from metropolis.scheduler.base import (
    Command,
    InstanceDownError,
    InstanceLimits,
    Place,
    Preempt,
    Reject,
    Report,
)
from metropolis.scheduler.instance import RequestState, Reranking, ScheduledInstance, TrackedRequest
from metropolis.scheduler.models import ServedModels
from metropolis.scheduler.notifier import Notifier
from metropolis.scheduler.placement import Placement
from metropolis.types import MetropolisError


class Scheduler(Notifier):
    """Orders requests by `policy` and places them by `dispatcher` on instances with `limits`.

    Instances are down until `instance_up`. Errors of plug-ins' notification methods go to
    `on_fault` and end no request. A dispatcher that defers requests for `deferral_max_s` seconds
    while all instances are idle is at fault: the requests are rejected.
    """

    def __init__(
        self,
        policy: Policy,
        dispatcher: Dispatcher,
        limits: Sequence[InstanceLimits],
        *,
        deferral_max_s: float = inf,
        on_fault: Callable[[PluginError], None] = raise_fault,
    ) -> None:
        super().__init__(policy, dispatcher, on_fault)
        self.preempts = bool(read(policy, "preempts"))
        """Whether the policy preempts."""
        self._instances = [ScheduledInstance(policy, each) for each in limits]
        self._reranking = Reranking(policy, self._instances)
        self.models = ServedModels(self.fleet)
        self._placement = Placement(policy, dispatcher, self.models.all)
        """Has the QUEUED requests."""
        self._requests: dict[int, TrackedRequest] = {}
        self.waiting = self.waiting_speculative = 0
        """Number of requests that wait, at an instance or for one; of those that may be in vain."""
        self._rejected, self._deferral_max_s, self.due_s = list[Reject](), deferral_max_s, inf
        """`due_s`: when ranks of waiting requests next change by the passing of time alone, as of
        the latest `schedule`."""
        self._deferred_since_s: dict[frozenset[int], float] = {}
        """Instances of a queue -> since when the dispatcher defers it although they are idle."""

    @property
    def in_flight(self) -> list[int]:
        """Number of requests submitted to each instance."""
        return [each.in_flight for each in self._instances]

    @property
    def is_up(self) -> list[bool]:
        """Whether each instance is up."""
        return [each.is_up for each in self._instances]

    def endless_deferral(self) -> PluginError:
        """The error of a dispatcher that defers all waiting requests for no reason."""
        return endless_deferral(self.dispatcher, self.waiting)

    def running(self, instance: int) -> list[int]:
        """Ids of the requests that run on `instance`, excluding those being preempted."""
        return [*self._instances[instance].running]

    def arrived(self, request: QueuedRequest, only: int | None = None) -> None:
        """`request` has arrived; with `only`, no other instance may serve it.

        Raises PluginError if the policy cannot rank it, InstanceDownError if `only` is down, and
        UnservedModelError if no instance serves its model.
        """
        if only is not None and not self._instances[only].is_up:
            raise InstanceDownError(only)
        allowed = self.models.serving(request.model) if only is None else frozenset((only,))
        if not allowed:
            raise self.models.unserved(request.model)
        call(Policy.arrived, self.policy, request)
        tracked = TrackedRequest(request, allowed, is_pinned=only is not None)
        try:
            self._placement.queue_of(allowed).push(request)
        except PluginError:
            self._notify(Policy.cancelled, self.policy, request)
            raise
        self._requests[request.id] = tracked
        self._count(tracked, 1)

    def progressed(self, instance: int, tokens: int, not_preemptible: Collection[int] = ()) -> None:
        """The running requests of `instance` have `tokens`, prompts and outputs so far.

        Excludes those being preempted. `not_preemptible`: ids of those that cannot be, now.
        """
        self._instances[instance].progressed(tokens, not_preemptible)

    def finished(self, served: ServedRequest) -> None:
        """A running request has been answered."""
        tracked = self._requests.pop(served.request.id)
        self._notify(Policy.completed, self.policy, served)
        self._remove(tracked)
        self._notify(Dispatcher.completed, self.dispatcher, served)

    def interrupted(self, request_id: int, output_tokens: int, now_s: float) -> None:
        """A running request has left its instance unfinished, with `output_tokens` so far.

        If its preemption was commanded it waits there, otherwise it is placed again.
        """
        tracked = self._requests[request_id]
        is_open = self._instances[tracked.instance].is_up and tracked.instance in tracked.allowed
        is_preempted = tracked.state is RequestState.PREEMPTING and is_open
        self._notify(Policy.preempted, self.policy, tracked.request, now_s)
        self._remove(tracked)
        tracked.output_tokens = output_tokens
        self._count(tracked, 1)
        if is_preempted:
            tracked.state = RequestState.PLACED
            self._push(self._instances[tracked.instance].queue, tracked, now_s)
        else:
            self._queue_again(tracked, now_s)

    def promoted(self, request_id: int, now_s: float) -> None:
        """A speculative request is needed: it ranks like others. An unknown one is ignored."""
        tracked = self._requests.get(request_id)
        if tracked is not None and tracked.request.speculative:
            tracked.request = replace(tracked.request, speculative=False)
            self._notify(Policy.promoted, self.policy, tracked.request)
            self.waiting_speculative -= tracked.is_waiting
            if tracked.state is RequestState.QUEUED:
                self._push(self._placement.queue_of(tracked.allowed), tracked, now_s)
            elif tracked.state is RequestState.PLACED:
                self._push(self._instances[tracked.instance].queue, tracked, now_s)
                self._instances[tracked.instance].blocked_first = None

    def cancelled(self, request_id: int, now_s: float) -> None:
        """The client of a request has left; an unknown request is ignored."""
        tracked = self._requests.pop(request_id, None)
        if tracked is None:  # it was rejected
            self._rejected = [one for one in self._rejected if one.request.id != request_id]
            return
        self._notify(Policy.cancelled, self.policy, tracked.request)
        self._drop(tracked, now_s)

    def instance_up(self, instance: int, now_s: float) -> None:
        """`instance` accepts requests, also those that wait for room at others."""
        if self._instances[instance].is_up:
            return
        self._instances[instance].is_up = True
        self._refresh(instance)
        self._place_again(now_s, lambda tracked: instance in tracked.allowed)

    def instance_down(self, instance: int, now_s: float) -> None:
        """`instance` accepts none: those waiting there are placed again, or rejected if pinned.

        Requests that run there end by events of their own.
        """
        self._instances[instance].is_up = False
        self._refresh(instance)
        self._place_again(now_s, lambda tracked: tracked.instance == instance)
        for tracked in [each for each in self._requests.values() if each.is_pinned]:
            if instance in tracked.allowed and tracked.state is RequestState.QUEUED:
                self._reject(tracked, InstanceDownError(instance), now_s)

    def models_changed(self, instance: int, models: frozenset[str] | None, now_s: float) -> None:
        """`instance` serves `models`, None: any; waiting requests follow, or are rejected."""
        self.models.set(instance, models)
        spec = replace(self.fleet.instances[instance], models=tuple(sorted(models or ())))
        self._specify(instance, spec)
        changed: set[int] = set()
        for tracked in [one for one in self._requests.values() if not one.is_pinned]:
            before, tracked.allowed = tracked.allowed, self.models.serving(tracked.request.model)
            if tracked.allowed != before:
                changed.add(tracked.request.id)
                if tracked.state is RequestState.QUEUED:
                    self._placement.queue_of(before).discard(tracked.request.id)
                    self._queue(tracked, now_s)
        self._place_again(now_s, lambda tracked: tracked.request.id in changed)

    def _place_again(self, now_s: float, is_affected: Callable[[TrackedRequest], bool]) -> None:
        """Return the affected requests that wait for room at an instance to the queue."""
        placed = [one for one in self._requests.values() if one.state is RequestState.PLACED]
        for tracked in filter(is_affected, placed):
            self._remove(tracked)
            self._queue_again(tracked, now_s)

    def schedule(self, now_s: float) -> list[Command]:
        """The commands due at `now_s`, after the events reported so far."""
        commands: list[Command] = []
        try:
            call(Policy.passed, self.policy, now_s)
            is_settled = False
            while not is_settled:  # a request that is rejected leaves room for others
                rejected = len(self._rejected)
                self._place_all(now_s)
                is_settled = not self._fill_all(now_s, commands) or len(self._rejected) == rejected
            changed, self.due_s = bool(commands or self._rejected), inf
            if self.waiting:
                self.due_s = next_due_s(self.policy, now_s, has_changed=changed)
            if not self.preempts:
                commands += self._reranking.changes(self.on_fault)
        except PluginError as error:  # later attempts would fail as well
            for tracked in [one for one in self._requests.values() if one.is_waiting]:
                self._reject(tracked, error, now_s)
            self.due_s = inf
            self.on_fault(error)
        if not any(isinstance(command, Report) for command in commands):
            for here in self._instances:
                here.is_reported = False
        commands, self._rejected = [*self._rejected, *commands], []
        return commands

    def _place_all(self, now_s: float) -> None:
        """Place the first waiting request until the dispatcher defers it."""
        deferred_since_s, self._deferred_since_s = self._deferred_since_s, {}
        blocked: set[frozenset[int]] = set()
        while first := self._placement.first(blocked):
            allowed, request = first
            tracked = self._requests[request.id]
            try:
                instance = self._placement.choose(request, allowed, now_s)
            except PluginError as error:
                self._reject(tracked, error, now_s)
                continue
            if instance is None:
                blocked.add(allowed)
                self._defer(allowed, deferred_since_s.get(allowed, now_s), now_s)
                continue
            self._placement.queue_of(allowed).pop()
            tracked.state, tracked.instance = RequestState.PLACED, instance
            self._push(self._instances[instance].queue, tracked, now_s)
            self._refresh(instance)

    def _defer(self, allowed: frozenset[int], since_s: float, now_s: float) -> None:
        """Record that the dispatcher defers a queue; reject its requests after `deferral_max_s`."""
        here = [self._instances[each] for each in allowed]
        if any(each.outstanding for each in here) or not any(each.is_up for each in here):
            return
        self._deferred_since_s[allowed] = since_s
        if now_s - since_s >= self._deferral_max_s:
            requests = self._placement.queue_of(allowed).requests()
            error = endless_deferral(self.dispatcher, len(requests))
            for request in requests:
                self._reject(self._requests[request.id], error, now_s)
            self.on_fault(error)

    def _fill_all(self, now_s: float, commands: list[Command]) -> bool:
        """Fill the instances in order, up to the first whose report is needed; whether none is."""
        waiting = [i for i, here in enumerate(self._instances) if self.waiting and here.queue]
        return all(self._fill(index, now_s, commands) for index in waiting)

    def _fill(self, index: int, now_s: float, commands: list[Command]) -> bool:
        """Start requests that wait at the instance while there is room, or room can be made.

        Returns False if a report of its progress is needed first.
        """
        here = self._instances[index]
        while here.queue:
            if here.is_blocked():
                return True
            here.blocked_first = None
            if self.preempts and here.needs_report():
                behind = enumerate(self._instances[index:], index)  # all at once: they are many
                commands += [Report(other) for other, each in behind if each.awaits_report()]
                return False
            tracked = self._requests[here.queue.first().id]
            if not self.preempts or here.has_room(tracked):
                self._start(tracked, now_s, commands)
            elif not self._make_room(tracked, now_s, commands):
                if all(each.is_preemptible for each in here.running.values()):
                    here.blocked_first = here.seen()
                return True
        return True

    def _start(self, tracked: TrackedRequest, now_s: float, commands: list[Command]) -> None:
        """Start the first request that waits at its instance."""
        try:
            priority = priority_of(self.policy, tracked.request)
        except PluginError as error:
            self._reject(tracked, error, now_s)
            return
        here = self._instances[tracked.instance]
        here.queue.pop()
        here.start(tracked, priority)
        self._count(tracked, -1)
        self._notify(Policy.started, self.policy, tracked.request, now_s)
        commands.append(Place(tracked.request, tracked.instance, priority))

    def _make_room(self, first: TrackedRequest, now_s: float, commands: list[Command]) -> bool:
        """Preempt the last-ranked running request if it ranks behind `first`; whether it did.

        Also true when `first` cannot be ranked and is rejected.
        """
        here = self._instances[first.instance]
        try:
            victim = here.victim_of(first.request, self.on_fault)
        except PluginError as error:
            self._reject(first, error, now_s)
            return True
        if victim is None:
            return False
        here.start_preempting(victim)
        commands.append(Preempt(victim.request, first.instance))
        return True

    def _queue_again(self, tracked: TrackedRequest, now_s: float) -> None:
        """Return a request from its instance to the queue."""
        instance, tracked.state = tracked.instance, RequestState.QUEUED
        self._notify(Dispatcher.cancelled, self.dispatcher, tracked.request, instance, now_s)
        if tracked.is_pinned and not self._instances[instance].is_up:
            self._reject(tracked, InstanceDownError(instance), now_s)
            return
        self._queue(tracked, now_s)

    def _queue(self, tracked: TrackedRequest, now_s: float) -> None:
        """Let a request wait to be placed, unless no instance has ever listed its model."""
        if tracked.allowed or self.models.may_return(tracked.request.model):
            self._push(self._placement.queue_of(tracked.allowed), tracked, now_s)
        else:
            self._reject(tracked, self.models.unserved(tracked.request.model), now_s)

    def _push(self, queue: RequestQueue, tracked: TrackedRequest, now_s: float) -> None:
        try:
            queue.push(tracked.request)
        except PluginError as error:
            self._reject(tracked, error, now_s)

    def _reject(self, tracked: TrackedRequest, error: MetropolisError, now_s: float) -> None:
        """End a waiting request with `error`."""
        del self._requests[tracked.request.id]
        self._notify(Policy.cancelled, self.policy, tracked.request)
        self._drop(tracked, now_s)
        self._rejected.append(Reject(tracked.request, error))

    def _drop(self, tracked: TrackedRequest, now_s: float) -> None:
        """Forget an unfinished request."""
        if tracked.is_waiting:
            self._count(tracked, -1)
        if tracked.state is RequestState.QUEUED:
            self._placement.queue_of(tracked.allowed).discard(tracked.request.id)
        else:
            self._remove(tracked)
            self._notify(
                Dispatcher.cancelled, self.dispatcher, tracked.request, tracked.instance, now_s
            )

    def _count(self, tracked: TrackedRequest, change: int) -> None:
        """Count a request that begins to wait (1) or ceases to (-1)."""
        self.waiting += change
        self.waiting_speculative += change * tracked.request.speculative

    def _remove(self, tracked: TrackedRequest) -> None:
        """Remove a request from its instance."""
        self._instances[tracked.instance].remove(tracked)
        self._refresh(tracked.instance)

    def _refresh(self, instance: int) -> None:
        """Open or close the instance to the dispatcher."""
        here = self._instances[instance]
        is_full = not self.preempts and here.outstanding >= here.limits.requests
        self._placement.set_open(instance, here.is_up and not is_full)
