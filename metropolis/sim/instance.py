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


@dataclass(frozen=True, slots=True)
class Left:
    """A request that has left an instance unfinished."""

    id: int
    left_sim_s: float
    output_tokens: int
    """Since its arrival."""


class Instance:
    """One engine; the caller advances the time."""

    def __init__(self, index: int, profile: Profile, options: PoolOptions) -> None:
        self._index, self._profile = index, profile
        self._pool = InstancePool(profile, **asdict(options))
        self._asked: dict[int, Asked] = {}
        """Submitted requests by id."""

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

    def advance(self, now_sim_s: float) -> Iterator[ServedRequest | Left]:
        """Advance to `now_sim_s`; yields the requests that left by then."""
        for completion in self._pool.advance(now_sim_s):
            asked, left_sim_s = self._asked.pop(completion.id), completion.last_token_sim_s
            self._account(asked, completion)
            if completion.aborted:
                yield Left(completion.id, left_sim_s, asked.generated_tokens)
            else:
                begun_sim_s = max(asked.request.arrived_s, left_sim_s - asked.served_sim_s)
                yield ServedRequest(
                    asked.request, self._index, begun_sim_s, left_sim_s, asked.output_tokens
                )

    def submit(self, asked: Asked, rank: int, now_sim_s: float) -> None:
        """Submit a request, or the rest of one that was preempted."""
        self._asked[asked.request.id] = asked
        asked.submitted_sim_s = now_sim_s
        left = asked.output_tokens - asked.generated_tokens
        tokens = Request(asked.prompt_tokens, left, rank, prefix=asked.prefix)
        self._pool.submit(asked.request.id, tokens, now_sim_s)

    def abort(self, request_id: int, now_sim_s: float) -> None:
        """Interrupt a request; `advance` yields it when it has left."""
        self._pool.abort(request_id, now_sim_s, keep=True)

    def _account(self, asked: Asked, completion: Completion) -> None:
        """Account for a stay in the engine, without the time waited there."""
        if completion.first_token_sim_s < inf:
            prefill = Request(asked.prompt_tokens, 1)
            alone_s = InstancePool.isolated_sim_s(self._profile, prefill)
            begun_sim_s = max(asked.submitted_sim_s, completion.first_token_sim_s - alone_s)
            asked.served_sim_s += completion.last_token_sim_s - begun_sim_s
        asked.generated_tokens += completion.output_tokens
