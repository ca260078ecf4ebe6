"""Simulated engines behind a policy and a dispatcher, in virtual time.

What the dispatcher does not place waits in the policy's order, and so does, in the engines, what
their memory does not admit yet: ranks go there as priorities.
"""

from __future__ import annotations

from math import inf, isinf

from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher
from metropolis.dispatch.faults import holding, placed_by
from metropolis.policy.base import Execution, Policy, QueuedRequest
from metropolis.policy.faults import call, due_s_of
from metropolis.policy.queue import RequestQueue
from metropolis.sim.instance import Asked, Instance
from metropolis.sim.options import PoolOptions


class SimulatedCluster:
    """As many instances as the dispatcher's fleet has; whoever drives them keeps the time."""

    def __init__(
        self, profile: Profile, policy: Policy, dispatcher: Dispatcher, options: PoolOptions
    ) -> None:
        self._policy, self._dispatcher = policy, dispatcher
        self._queue = RequestQueue(policy)
        instances = range(dispatcher.fleet.instances)
        self._instances = [Instance(index, profile, policy, options) for index in instances]
        self._preemptions = [0] * len(self._instances)
        self._unplaced: dict[int, Asked] = {}

    @property
    def preemptions(self) -> int:
        """So far, of all instances: by the engines, for want of memory, and by the policy."""
        return sum(self._preemptions) + sum(instance.aborted for instance in self._instances)

    def busy_sim_s(self) -> float:
        """How long the instances have computed, all together."""
        return sum(instance.busy_sim_s for instance in self._instances)

    def send(
        self, request: QueuedRequest, output_tokens: int, answer_text: int | None = None
    ) -> None:
        """`request` waits from its arrival on, until `dispatch` places it.

        `answer_text`: which text its answer is, if later prompts may repeat it.
        """
        self._unplaced[request.id] = Asked(request, output_tokens, answer_text)
        self._queue.push(request)

    def program_ended(self, program: str) -> None:
        """Nothing more will be sent for it."""
        call(self._policy.program_ended, program)
        call(self._dispatcher.program_ended, program)

    def next_event_sim_s(self) -> float:
        """When something may be answered or preempted next; infinite when nothing is placed."""
        is_contended = any(instance.is_waited_for for instance in self._instances)
        due_s = due_s_of(self._policy) if is_contended else inf
        return min(due_s, *(instance.next_event_sim_s() for instance in self._instances))

    def check_progress(self) -> None:
        """Raise PluginError if requests wait though nothing will be answered."""
        if self._queue and isinf(self.next_event_sim_s()):
            raise holding(self._dispatcher, len(self._queue))

    def advance(self, now_sim_s: float) -> list[Execution]:
        """Go on to `now_sim_s`; returns what has been answered on the way."""
        executions: list[Execution] = []
        for index, instance in enumerate(self._instances):
            for execution in instance.advance(now_sim_s):
                call(self._policy.completed, execution)
                call(self._dispatcher.completed, execution)
                executions.append(execution)
            if instance.preemptions > self._preemptions[index]:
                self._preemptions[index] = instance.preemptions
                call(self._dispatcher.preempted, index, now_sim_s)
        return executions

    def dispatch(self, now_sim_s: float) -> None:
        """Place what waits, first things first, until the dispatcher holds one back."""
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
