"""A simulated instance that keeps to a policy's order, as a front of an unmodified engine does.

A policy that preempts holds back what has no room; what runs and ranks after it is aborted and
waits again, and its prompt and the tokens it has are its next prompt (Agentix §4.2.2). What an
unmodified engine does not do: with preemption by swap it goes on with its KV, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf

from metropolis._core import Completion, InstancePool, Profile, Request
from metropolis.policy.base import Execution, Policy, QueuedRequest
from metropolis.policy.faults import call, rank_of
from metropolis.policy.queue import RequestQueue
from metropolis.sim.options import PoolOptions


@dataclass(slots=True)
class Asked:
    """A request and what has become of it."""

    request: QueuedRequest
    output_tokens: int
    answer_text: int | None = None
    """Which text its answer is, if its whole prompt is told as texts."""
    generated_tokens: int = 0
    """Before it was preempted."""
    submitted_sim_s: float = 0.0
    """The last time."""
    served_sim_s: float = 0.0
    """Before it was preempted."""

    @property
    def prompt_tokens(self) -> int:
        """With what it has of its answer."""
        return self.request.prompt_tokens + self.generated_tokens

    @property
    def prefix(self) -> tuple[tuple[int, int], ...]:
        """What prompt and answer begin with, as far as others may begin with it."""
        if self.answer_text is None:
            return self.request.prefix
        return *self.request.prefix, (self.answer_text, self.output_tokens)


class Instance:
    """One engine; whoever drives it keeps the time."""

    def __init__(self, index: int, profile: Profile, policy: Policy, options: PoolOptions) -> None:
        self._index, self._profile, self._policy = index, profile, policy
        self._pool = InstancePool(profile, **asdict(options))
        self._queue = RequestQueue(policy)
        self._asked: dict[int, Asked] = {}
        """By id, all that has not been answered."""
        self._inside: dict[int, Asked] = {}
        """What the engine has and is to keep."""
        self._aborted = 0
        self._held_back: tuple[int, int, int] | None = None
        """Who found no room, by the ranks of then (see `fill`); None: it might now."""

    @property
    def preemptions(self) -> int:
        """So far, by the engine for want of memory."""
        return self._pool.preemptions()

    @property
    def aborted(self) -> int:
        """So far, by the policy."""
        return self._aborted

    @property
    def busy_sim_s(self) -> float:
        """How long it has computed."""
        return self._pool.busy_sim_s(0)

    @property
    def is_waited_for(self) -> bool:
        """Whether something is held back."""
        return bool(self._queue)

    def next_event_sim_s(self) -> float:
        """When something may leave next; infinite when the engine has nothing."""
        return self._pool.next_event_sim_s()

    def add(self, asked: Asked) -> None:
        """It is placed here and waits, until `fill` submits it."""
        self._asked[asked.request.id] = asked
        self._queue.push_back(asked.request)

    def advance(self, now_sim_s: float) -> Iterator[Execution]:
        """Go on to `now_sim_s`; what has been answered on the way."""
        for completion in self._pool.advance(now_sim_s):
            asked, left_sim_s = self._asked[completion.id], completion.last_token_sim_s
            self._inside.pop(completion.id, None)
            self._held_back = None
            self._serve(asked, completion)
            if completion.aborted:
                call(self._policy.preempted, asked.request, left_sim_s)
                self._queue.push_back(asked.request)
            else:
                del self._asked[completion.id]
                begun_sim_s = max(asked.request.arrived_s, left_sim_s - asked.served_sim_s)
                yield Execution(
                    asked.request, self._index, begun_sim_s, left_sim_s, asked.output_tokens
                )

    def fill(self, now_sim_s: float) -> None:
        """Submit what waits while there is room, or can be made.

        While nobody leaves and ranks are the same, who was held back is so again: what runs grows.
        """
        while self._queue:
            first = self._queue.first()
            seen = first.id, self._policy.version, self._policy.running_version
            if seen == self._held_back:
                return
            self._held_back = None
            if self._has_room(self._asked[first.id]):
                self._queue.pop()
                self._submit(self._asked[first.id], now_sim_s)
            elif not self._make_place(first, now_sim_s):
                self._held_back = seen
                return

    def _has_room(self, asked: Asked) -> bool:
        if not self._policy.preempts or not self._inside:
            return True
        if len(self._inside) >= self._profile.max_sequences:
            return False
        held_tokens = self._pool.status().sequence_tokens
        return held_tokens + asked.prompt_tokens <= self._profile.kv_capacity_tokens

    def _make_place(self, first: QueuedRequest, now_sim_s: float) -> bool:
        """Abort who ranks last, if that is after `first`."""
        last = max((one.request for one in self._inside.values()), key=self._place)
        if self._place(last) <= self._place(first):
            return False
        self._aborted += 1
        del self._inside[last.id]
        self._pool.abort(last.id, now_sim_s, keep=True)
        return True

    def _place(self, request: QueuedRequest) -> tuple[int, float, int]:
        return rank_of(self._policy, request), request.arrived_s, request.id

    def _submit(self, asked: Asked, now_sim_s: float) -> None:
        request = asked.request
        self._inside[request.id] = asked
        asked.submitted_sim_s = now_sim_s
        left = asked.output_tokens - asked.generated_tokens
        rank = rank_of(self._policy, request)
        tokens = Request(asked.prompt_tokens, left, rank, prefix=asked.prefix)
        self._pool.submit(request.id, tokens, now_sim_s)
        call(self._policy.started, request, now_sim_s)

    def _serve(self, asked: Asked, completion: Completion) -> None:
        """Account for a stay in the engine, less the time it waited there."""
        if completion.first_token_sim_s < inf:
            prefill = Request(asked.prompt_tokens, 1)
            alone_s = InstancePool.isolated_sim_s(self._profile, prefill)
            begun_sim_s = max(asked.submitted_sim_s, completion.first_token_sim_s - alone_s)
            asked.served_sim_s += completion.last_token_sim_s - begun_sim_s
        asked.generated_tokens += completion.output_tokens
