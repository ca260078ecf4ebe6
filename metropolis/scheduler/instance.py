"""The scheduler's record of one instance and of one request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.faults import PluginError, reranked_by, version_of, versions_of
from metropolis.policy.queue import RequestQueue, order_of, priority_of
from metropolis.scheduler.base import InstanceLimits, Reprioritize


class RequestState(Enum):
    """The states of a request; see the table in scheduler.py."""

    QUEUED = auto()
    PLACED = auto()
    RUNNING = auto()
    PREEMPTING = auto()


@dataclass(slots=True)
class TrackedRequest:
    """A request between its arrival and its end."""

    request: QueuedRequest
    allowed: frozenset[int]
    """The instances that may serve it."""
    is_pinned: bool
    """Whether it is rejected when its only instance is down; otherwise it waits."""
    state: RequestState = RequestState.QUEUED
    instance: int = -1
    """Valid unless QUEUED."""
    output_tokens: int = 0
    priority: int = 0
    """Its priority as its instance knows it, if it runs."""
    is_preemptible: bool = False
    """Whether it can be preempted, if it runs."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits, at an instance or for one."""
        return self.state in (RequestState.QUEUED, RequestState.PLACED)

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return self.request.prompt_tokens + self.output_tokens


class ScheduledInstance:
    """One instance: the requests that wait there and those that run."""

    def __init__(self, policy: Policy, limits: InstanceLimits) -> None:
        self._policy, self.limits = policy, limits
        self.is_up = False
        self.queue = RequestQueue(policy)
        """Requests placed here that have no room yet."""
        self.running: dict[int, TrackedRequest] = {}
        """Excludes those being preempted."""
        self.preempting: dict[int, TrackedRequest] = {}
        """Requests whose preemption was commanded, until they are interrupted."""
        self.held_tokens = 0
        """Tokens of the running requests: as last reported, and of those started since."""
        self.is_reported = False
        """Whether `held_tokens` and `is_preemptible` are up to date."""
        self.blocked_first: tuple[int, int] | None = None
        """A first request that found no room, as `seen`. It finds none until a request leaves or
        ranks change, because running requests only grow."""

    @property
    def in_flight(self) -> int:
        """Number of requests submitted to the instance."""
        return len(self.running) + len(self.preempting)

    @property
    def outstanding(self) -> int:
        """Number of requests placed here, submitted or not."""
        return self.in_flight + len(self.queue)

    def has_room(self, tracked: TrackedRequest) -> bool:
        """Whether the limits allow `tracked` to run; an empty instance has room for any request."""
        return not self.running or (
            len(self.running) < self.limits.requests
            and self.held_tokens + tracked.tokens <= self.limits.kv_tokens
        )

    def victim_of(
        self, first: QueuedRequest, on_fault: Callable[[PluginError], None]
    ) -> TrackedRequest | None:
        """The running request to preempt for `first`: the last-ranked one, if it ranks behind.

        One that cannot be ranked goes to `on_fault` and keeps its place. Raises PluginError if
        `first` cannot be ranked.
        """
        victim, last = None, order_of(self._policy, first)
        for tracked in self.running.values():
            if tracked.is_preemptible:
                try:
                    order = order_of(self._policy, tracked.request)
                except PluginError as error:
                    on_fault(error)
                    continue
                if order > last:
                    victim, last = tracked, order
        return victim

    def new_priorities(self, on_fault: Callable[[PluginError], None]) -> dict[int, int]:
        """The priorities, by id, of the running requests whose rank has changed.

        One that cannot be ranked goes to `on_fault` and keeps its priority.
        """
        found = dict[int, int]()
        for id_, tracked in self.running.items():
            try:
                priority = priority_of(self._policy, tracked.request)
            except PluginError as error:
                on_fault(error)
                continue
            if priority != tracked.priority:
                tracked.priority = found[id_] = priority
        return found

    def start(self, tracked: TrackedRequest, priority: int) -> None:
        """Add `tracked` to the running requests."""
        tracked.state, tracked.priority = RequestState.RUNNING, priority
        tracked.is_preemptible = self.limits.always_preemptible
        self.running[tracked.request.id] = tracked
        self.held_tokens += tracked.tokens

    def start_preempting(self, tracked: TrackedRequest) -> None:
        """Move `tracked` from the running requests to those being preempted."""
        del self.running[tracked.request.id]
        self.is_reported = False
        tracked.state = RequestState.PREEMPTING
        self.preempting[tracked.request.id] = tracked

    def remove(self, tracked: TrackedRequest) -> None:
        """Remove a request that waits, runs or is being preempted here."""
        if tracked.state is RequestState.PLACED:
            self.queue.discard(tracked.request.id)
        elif tracked.state is RequestState.RUNNING:
            del self.running[tracked.request.id]
        else:
            del self.preempting[tracked.request.id]
        self.blocked_first = None

    def progressed(self, tokens: int, not_preemptible: Collection[int]) -> None:
        """Set the tokens of the running requests, and those of them that cannot be preempted."""
        self.held_tokens = tokens
        if not_preemptible or not self.limits.always_preemptible:
            for id_, tracked in self.running.items():
                tracked.is_preemptible = id_ not in not_preemptible
        self.is_reported = True

    def seen(self) -> tuple[int, int]:
        """The id of the first request, which waits here, and the sum of the policy's versions."""
        return self.queue.first().id, versions_of(self._policy)

    def is_blocked(self) -> bool:
        """Whether it is known that the first request, which waits here, finds no room."""
        first, versions = self.seen()
        if self.blocked_first is None or self.blocked_first[0] != first:
            return False
        if self.blocked_first[1] != versions:
            ids = reranked_by(self._policy, self.blocked_first[1])
            if ids is None or first in ids or not self.running.keys().isdisjoint(ids):
                return False
            self.blocked_first = first, versions
        return True

    def awaits_report(self) -> bool:
        """Whether a request waits here for a report of progress."""
        return bool(self.queue) and self.needs_report() and not self.is_blocked()

    def needs_report(self) -> bool:
        """Whether the next decision on room depends on progress that is not reported yet."""
        if self.is_reported or not self.running:
            return False
        is_by_memory = len(self.running) < self.limits.requests and self.limits.kv_tokens < inf
        return is_by_memory or not self.limits.always_preemptible


class Reranking:
    """The changes of running requests' ranks, where instances take them."""

    def __init__(self, policy: Policy, instances: Sequence[ScheduledInstance]) -> None:
        self._policy, self._instances = policy, instances
        self._version = -1
        """The policy's version for which the priorities of the running requests are right."""

    def changes(self, on_fault: Callable[[PluginError], None]) -> list[Reprioritize]:
        """The commands for the ranks that have changed; see `new_priorities`."""
        version = version_of(self._policy, "version")
        if version == self._version:
            return []
        self._version, changes = version, list[Reprioritize]()
        for index, here in enumerate(self._instances):
            if not (here.running and here.limits.reprioritizes):
                continue
            if priorities := here.new_priorities(on_fault):
                changes.append(Reprioritize(index, priorities))
        return changes
