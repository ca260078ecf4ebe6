"""Simulated engines behind a policy and a dispatcher, in virtual time.

What the dispatcher does not place waits in the policy's order, and so does, in the engines, what
their memory does not admit yet: ranks go there as priorities.
"""

from __future__ import annotations

from metropolis._core import Completion, InstancePool, Profile, Request
from metropolis.dispatch.base import Dispatcher
from metropolis.policy.base import Execution, Policy, QueuedRequest
from metropolis.policy.queue import RequestQueue


class Engines:
    """As many instances as the dispatcher's fleet has; whoever drives them keeps the time."""

    def __init__(self, profile: Profile, policy: Policy, dispatcher: Dispatcher) -> None:
        self._profile, self._policy, self._dispatcher = profile, policy, dispatcher
        self._queue = RequestQueue(policy)
        self._pools = [InstancePool(profile) for _ in range(dispatcher.fleet.instances)]
        self._preemptions = [0] * len(self._pools)
        self._sent: dict[int, tuple[QueuedRequest, int]] = {}
        """By id, until it is answered: the request, and the tokens of its answer."""

    @property
    def preemptions(self) -> int:
        """So far, of all instances."""
        return sum(self._preemptions)

    def send(self, request: QueuedRequest, output_tokens: int) -> None:
        """`request` waits from its arrival on, until `dispatch` places it."""
        self._sent[request.id] = request, output_tokens
        self._queue.push(request)

    def next_event_sim_s(self) -> float:
        """When something may be answered next; infinite when nothing is placed."""
        return min(pool.next_event_sim_s() for pool in self._pools)

    def advance(self, now_sim_s: float) -> list[Execution]:
        """Go on to `now_sim_s`; returns what has been answered on the way."""
        executions = []
        for instance, pool in enumerate(self._pools):
            executions += [self._completed(one, instance) for one in pool.advance(now_sim_s)]
            if pool.preemptions() > self._preemptions[instance]:
                self._preemptions[instance] = pool.preemptions()
                self._dispatcher.preempted(instance, now_sim_s)
        return executions

    def dispatch(self, now_sim_s: float) -> None:
        """Place what waits, first things first, until the dispatcher holds one back."""
        self._policy.passed(now_sim_s)
        while self._queue:
            request = self._queue.first()
            instance = self._dispatcher.place(request, now_sim_s)
            if instance is None:
                return
            self._queue.pop()
            _, output_tokens = self._sent[request.id]
            tokens = Request(request.prompt_tokens, output_tokens, self._policy.rank(request))
            self._pools[instance].submit(request.id, tokens, now_sim_s)
            self._policy.started(request, now_sim_s)

    def _completed(self, completion: Completion, instance: int) -> Execution:
        request, output_tokens = self._sent.pop(completion.id)
        alone_s = InstancePool.isolated_sim_s(self._profile, Request(request.prompt_tokens, 1))
        started_sim_s = max(request.arrived_s, completion.first_token_sim_s - alone_s)
        now_sim_s = completion.last_token_sim_s
        execution = Execution(request, instance, started_sim_s, now_sim_s, output_tokens)
        self._policy.completed(execution)
        self._dispatcher.completed(execution)
        return execution
