"""A simulated instance that follows a policy's order, like a proxy of an unmodified engine.

With a preemptive policy, a request that finds no room is held back. Running requests that rank
behind it are aborted and wait again; their prompt and output so far become their next prompt
(Agentix §4.2.2). Unlike on an unmodified engine, with swap they resume with their KV, as in the
paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf

from metropolis._core import Completion, InstancePool, Profile, Request
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import call, rank_of
from metropolis.policy.queue import RequestQueue
from metropolis.sim.options import PoolOptions


@dataclass(slots=True)
class Asked:
    """A request and its progress."""

    request: QueuedRequest
    output_tokens: int
    answer_text: int | None = None
    """Id of its answer's text, if the whole prompt is given as texts."""
    generated_tokens: int = 0
    """Output tokens generated before preemptions."""
    submitted_sim_s: float = 0.0
    """Time of the latest submission."""
    served_sim_s: float = 0.0
    """Service time of earlier stays in the engine."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens, including the output so far."""
        return self.request.prompt_tokens + self.generated_tokens

    @property
    def prefix(self) -> tuple[tuple[int, int], ...]:
        """The shareable prefix of prompt and answer."""
        if self.answer_text is None:
            return self.request.prefix
        return *self.request.prefix, (self.answer_text, self.output_tokens)


class Instance:
    """One engine; the caller advances the time."""

    def __init__(self, index: int, profile: Profile, policy: Policy, options: PoolOptions) -> None:
        self._index, self._profile, self._policy = index, profile, policy
        self._pool = InstancePool(profile, **asdict(options))
        self._queue = RequestQueue(policy)
        self._asked: dict[int, Asked] = {}
        """Uncompleted requests by id."""
        self._inside: dict[int, Asked] = {}
        """Requests in the engine that are not being aborted."""
        self._aborted = 0
        self._held_back: tuple[int, int, int] | None = None
        """(id, version, running_version) of a request that found no room (see `fill`)."""

    @property
    def preemptions(self) -> int:
        """Preemptions so far by the engine, for lack of memory."""
        return self._pool.preemptions()

    @property
    def aborted(self) -> int:
        """Preemptions so far by the policy."""
        return self._aborted

    @property
    def busy_sim_s(self) -> float:
        """Busy time so far."""
        return self._pool.busy_sim_s(0)

    @property
    def is_waited_for(self) -> bool:
        """Whether a request is held back."""
        return bool(self._queue)

    def next_event_sim_s(self) -> float:
        """The earliest time at which a request may leave; infinite when the engine is empty."""
        return self._pool.next_event_sim_s()

    def add(self, asked: Asked) -> None:
        """Enqueue a request placed here, until `fill` submits it."""
        self._asked[asked.request.id] = asked
        self._queue.push_back(asked.request)

    def advance(self, now_sim_s: float) -> Iterator[ServedRequest]:
        """Advance to `now_sim_s`; yields the requests completed by then."""
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
                yield ServedRequest(
                    asked.request, self._index, begun_sim_s, left_sim_s, asked.output_tokens
                )

    def fill(self, now_sim_s: float) -> None:
        """Submit waiting requests while there is room, or room can be made.

        A request held back stays so until one leaves or ranks change, as running ones only grow.
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
        """Abort the last-ranked request if it ranks behind `first`; whether it did."""
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
        """Account for a stay in the engine, without the time waited there."""
        if completion.first_token_sim_s < inf:
            prefill = Request(asked.prompt_tokens, 1)
            alone_s = InstancePool.isolated_sim_s(self._profile, prefill)
            begun_sim_s = max(asked.submitted_sim_s, completion.first_token_sim_s - alone_s)
            asked.served_sim_s += completion.last_token_sim_s - begun_sim_s
        asked.generated_tokens += completion.output_tokens
