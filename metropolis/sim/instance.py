"""A simulated instance: carries out the scheduler's commands in virtual time.

A preempted request's prompt and output so far become its next prompt (Agentix §4.2.2). Unlike on an
unmodified engine, with swap it resumes with its KV, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf

from metropolis._core import Completion, InstancePool, Profile, Request
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.sim.options import PoolOptions


@dataclass(slots=True)
class SimulatedRequest:
    """A request and its progress on its instances."""

    request: QueuedRequest
    output_tokens: int
    answer_text: int | None = None
    """Id of its answer's text, if the whole prompt is given as texts."""
    generated_tokens: int = 0
    """Output tokens generated before preemptions."""
    submitted_sim_s: float = 0.0
    """Time of the latest submission."""
    served_sim_s: float = 0.0
    """Service time so far, before the current stay in the engine."""

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


@dataclass(frozen=True, slots=True)
class Aborted:
    """A request that left an instance before its last token."""

    id: int
    left_sim_s: float
    output_tokens: int
    """Output tokens since its arrival."""


class SimulatedInstance:
    """One engine; the caller advances the time."""

    def __init__(self, index: int, profile: Profile, options: PoolOptions) -> None:
        self._index, self._profile = index, profile
        self._pool = InstancePool(profile, **asdict(options))
        self._requests: dict[int, SimulatedRequest] = {}
        """Submitted requests by id, but for cancelled ones."""
        self._leaving: set[int] = set()
        """Ids of aborted requests that have not left yet."""

    @property
    def preemptions(self) -> int:
        """Preemptions so far by the engine, for lack of memory."""
        return self._pool.preemptions()

    @property
    def busy_sim_s(self) -> float:
        """Busy time so far."""
        return self._pool.busy_sim_s(0)

    def next_event_sim_s(self) -> float:
        """The earliest time at which a request may leave; infinite when the engine is empty."""
        return self._pool.next_event_sim_s()

    @property
    def held_tokens(self) -> int:
        """Tokens of the submitted requests that are not aborted, at the latest `advance`."""
        return self._pool.status().sequence_tokens

    def advance(self, now_sim_s: float) -> Iterator[ServedRequest | Aborted]:
        """Advance to `now_sim_s`; yields the requests that left by then."""
        for completion in self._pool.advance(now_sim_s):
            self._leaving.discard(completion.id)
            left_sim_s = completion.last_token_sim_s
            request = self._requests.pop(completion.id, None)
            if request is None:
                continue  # it was cancelled
            self._account(request, completion)
            if completion.aborted:
                yield Aborted(completion.id, left_sim_s, request.generated_tokens)
            else:
                begun_sim_s = max(request.request.arrived_s, left_sim_s - request.served_sim_s)
                yield ServedRequest(
                    request.request, self._index, begun_sim_s, left_sim_s, request.output_tokens
                )

    def submit(self, request: SimulatedRequest, priority: int, now_sim_s: float) -> None:
        """Submit a request, or the rest of one that was preempted."""
        self._requests[request.request.id] = request
        request.submitted_sim_s = now_sim_s
        left = request.output_tokens - request.generated_tokens
        tokens = Request(request.prompt_tokens, left, priority, prefix=request.prefix)
        self._pool.submit(request.request.id, tokens, now_sim_s)

    def abort(self, request_id: int, now_sim_s: float) -> None:
        """Interrupt a request; `advance` yields it when it has left."""
        self._leaving.add(request_id)
        self._pool.abort(request_id, now_sim_s, keep=True)

    def withdraw(self, request_id: int, now_sim_s: float) -> None:
        """Interrupt a request that waits in the engine, if there is one with this id."""
        waits = request_id in self._requests and request_id not in self._pool.progress()
        if waits and request_id not in self._leaving:
            self.abort(request_id, now_sim_s)

    def cancel(self, request_id: int, now_sim_s: float) -> None:
        """End a request, if there is one with this id; `advance` does not yield it."""
        if self._requests.pop(request_id, None) is not None and request_id not in self._leaving:
            self._leaving.add(request_id)
            self._pool.abort(request_id, now_sim_s)

    def _account(self, request: SimulatedRequest, completion: Completion) -> None:
        """Account for a stay in the engine, without the time waited there."""
        if completion.first_token_sim_s < inf:
            prefill = Request(request.prompt_tokens, 1)
            alone_s = InstancePool.isolated_sim_s(self._profile, prefill)
            begun_sim_s = max(request.submitted_sim_s, completion.first_token_sim_s - alone_s)
            request.served_sim_s += completion.last_token_sim_s - begun_sim_s
        request.generated_tokens += completion.output_tokens
