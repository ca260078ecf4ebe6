"""Simulated engines behind a policy and a dispatcher, in virtual time.

Requests that the dispatcher does not place wait in the policy's order, as do placed requests that
an engine's memory cannot admit yet: engines take ranks as priorities.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf

from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher
from metropolis.dispatch.faults import holding, placed_by
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import call, due_s_of
from metropolis.policy.queue import RequestQueue
from metropolis.sim.instance import Asked, Instance
from metropolis.sim.options import PoolOptions


class SimulatedCluster:
    """The instances of the dispatcher's fleet, by their profiles; the caller advances the time."""

    def __init__(
        self,
        profiles: Sequence[Profile],
        policy: Policy,
        dispatcher: Dispatcher,
        options: PoolOptions,
    ) -> None:
        self._policy, self._dispatcher = policy, dispatcher
        self._queue = RequestQueue(policy)
        self._instances = [
            Instance(index, profile, policy, options) for index, profile in enumerate(profiles)
        ]
        self._preemptions = [0] * len(self._instances)
        self._unplaced: dict[int, Asked] = {}

    @property
    def preemptions(self) -> int:
        """Preemptions so far on all instances: by engines (lack of memory) and by the policy."""
        return sum(self._preemptions) + sum(instance.aborted for instance in self._instances)

    def busy_sim_s(self) -> float:
        """Busy time summed over the instances."""
        return sum(instance.busy_sim_s for instance in self._instances)

    def send(
        self, request: QueuedRequest, output_tokens: int, answer_text: int | None = None
    ) -> None:
        """Enqueue `request`, which waits from its arrival until `dispatch` places it.

        `answer_text`: the id of its answer's text, if later prompts may contain it.
        """
        self._unplaced[request.id] = Asked(request, output_tokens, answer_text)
        self._queue.push(request)

    def program_ended(self, program: str) -> None:
        """`program` will send no more requests."""
        call(self._policy.program_ended, program)
        call(self._dispatcher.program_ended, program)

    def next_event_sim_s(self) -> float:
        """The earliest next completion or preemption; infinite when nothing is placed."""
        is_contended = any(instance.is_waited_for for instance in self._instances)
        due_s = due_s_of(self._policy) if is_contended else inf
        return min(due_s, *(instance.next_event_sim_s() for instance in self._instances))

    def check_progress(self) -> None:
        """Raise PluginError if requests wait although no instance is busy."""
        if self._queue and isinf(self.next_event_sim_s()):
            raise holding(self._dispatcher, len(self._queue))

    def advance(self, now_sim_s: float) -> list[ServedRequest]:
        """Advance to `now_sim_s`; returns the requests completed by then."""
        served_requests: list[ServedRequest] = []
        for index, instance in enumerate(self._instances):
            for served in instance.advance(now_sim_s):
                call(self._policy.completed, served)
                call(self._dispatcher.completed, served)
                served_requests.append(served)
            if instance.preemptions > self._preemptions[index]:
                self._preemptions[index] = instance.preemptions
                call(self._dispatcher.preempted, index, now_sim_s)
        return served_requests

    def dispatch(self, now_sim_s: float) -> None:
        """Place waiting requests in order, until the dispatcher holds one back."""
        call(self._policy.passed, now_sim_s)
        while self._queue:
            request = self._queue.first()
            placed = placed_by(self._dispatcher, request, now_sim_s)
            if placed is None:
                break
            self._queue.pop()
            self._instances[placed].add(self._unplaced.pop(request.id))
        for instance in self._instances:
            instance.fill(now_sim_s)
