"""A simulated instance: carries out the scheduler's commands in virtual time.

A preempted request's prompt and output so far become its next prompt, as on an unmodified engine;
with swap it resumes with its KV, as in Agentix (§4.2.2).

A request that starts from a cache elsewhere is on its instance from the moment it is placed, but
enters the engine when enough of that cache has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from math import inf

from metropolis._core import Completion, InstancePool, Profile, Request
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.sim.options import PoolOptions


@dataclass(frozen=True, slots=True)
class Start:
    """What a prefill starts from beside the instance's own cache."""

    reused_tokens: int = 0
    """Leading tokens of the prompt that start from another cache."""
    reused_share: float = 0.0
    """Share of their prefill that is left, from 0 to 1."""
    ready_sim_s: float = 0.0
    """When enough of the reused cache has arrived."""


@dataclass(slots=True)
class SimulatedRequest:
    """A request and its progress on its instances."""

    request: QueuedRequest
    output_tokens: int
    answer_text: int | None = None
    """Id of its answer's text, if the whole prompt is given as texts."""
    generated_tokens: int = 0
    """Output tokens generated before preemptions."""
    priority: int = 0
    instance: int | None = None
    """The index of the instance that got it last."""
    start: Start = Start()
    """What the prefill of the latest submission starts from."""
    submitted_sim_s: float = 0.0
    """The time at which the request was submitted to an engine last."""
    first_token_sim_s: float = inf
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

    @property
    def work(self) -> Request:
        """The request that is submitted to the core's engine: what is left to compute."""
        return Request(
            self.prompt_tokens,
            self.output_tokens - self.generated_tokens,
            self.priority,
            self.prefix,
            self.start.reused_tokens,
            self.start.reused_share,
        )


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
        self.index, self._profile, self._options = index, profile, options
        self._pool = InstancePool(profile, **asdict(options))
        self._preemptions_before, self._busy_before_sim_s = 0, 0.0
        """Sums over the engines before the latest `restart`."""
        self._requests: dict[int, SimulatedRequest] = {}
        """Submitted requests by id, but for cancelled ones."""
        self._loading: list[tuple[float, int, SimulatedRequest]] = []
        """Heap of the requests that wait for a cache elsewhere: (ready_sim_s, id, request)."""
        self._not_begun: list[tuple[float, int]] = []
        """When requests were aborted while they waited so, and their ids."""
        self._leaving: set[int] = set()
        """Ids of aborted requests that have not left yet."""
        self.next_event_sim_s = inf
        """The earliest time at which a request may leave; infinite when the engine is empty."""

    @property
    def preemptions(self) -> int:
        """Preemptions so far by the engine, for lack of memory."""
        return self._preemptions_before + self._pool.preemptions()

    @property
    def busy_sim_s(self) -> float:
        """Busy time so far."""
        return self._busy_before_sim_s + self._pool.busy_sim_s(0)

    def _update_next_event(self) -> None:
        events = [queue[0][0] for queue in (self._loading, self._not_begun) if queue]
        self.next_event_sim_s = min(self._pool.next_event_sim_s(), *events, inf)

    def pass_time(self, now_sim_s: float) -> None:
        """Continue the engine's iteration until `now_sim_s`, unless it has an event by then."""
        if self._pool.next_event_sim_s() > now_sim_s:
            self._pool.advance(now_sim_s)

    @property
    def held_tokens(self) -> int:
        """Tokens of the submitted requests that are not aborted, at the latest time passed."""
        loading = sum(request.prompt_tokens for _, _, request in self._loading)
        return self._pool.status().sequence_tokens + loading

    def cached_tokens(self, prefix: tuple[tuple[int, int], ...]) -> int:
        """Leading tokens of `prefix` in its prefix cache, in whole blocks, at the same time."""
        return self._pool.cached_tokens(0, prefix)

    def advance(self, now_sim_s: float) -> list[ServedRequest | Aborted]:
        """Advance to `now_sim_s`; returns the requests that left by then."""
        gone: list[ServedRequest | Aborted] = []
        self._submit_loaded(now_sim_s)
        not_begun, self._not_begun = self._not_begun, []
        for left_sim_s, id in not_begun:
            self._leaving.discard(id)
            if request := self._requests.pop(id, None):  # else it was cancelled
                gone.append(Aborted(id, left_sim_s, request.generated_tokens))
        for completion in self._pool.advance(now_sim_s):
            self._leaving.discard(completion.id)
            left_sim_s = completion.last_token_sim_s
            request = self._requests.pop(completion.id, None)
            if request is None:
                continue  # the request was cancelled
            self._account(request, completion)
            if completion.aborted:
                gone.append(Aborted(completion.id, left_sim_s, request.generated_tokens))
            else:
                begun_sim_s = max(request.request.arrived_s, left_sim_s - request.served_sim_s)
                served = ServedRequest(
                    request.request,
                    self.index,
                    begun_sim_s,
                    left_sim_s,
                    request.output_tokens,
                    request.first_token_sim_s,
                )
                gone.append(served)
        self._update_next_event()
        return gone

    def restart(self) -> None:
        """Replace the engine, which has no request, by one with an empty cache."""
        assert not self._requests, "an instance with requests restarts"
        self._preemptions_before, self._busy_before_sim_s = self.preemptions, self.busy_sim_s
        self._pool = InstancePool(self._profile, **asdict(self._options))
        self._update_next_event()

    def submit(
        self, request: SimulatedRequest, priority: int, now_sim_s: float, start: Start
    ) -> None:
        """Submit a request, or the rest of one that was preempted."""
        id, ready_sim_s = request.request.id, max(now_sim_s, start.ready_sim_s)
        self._requests[id] = request
        request.start, request.submitted_sim_s, request.priority = start, ready_sim_s, priority
        heappush(self._loading, (ready_sim_s, id, request))
        self._submit_loaded(now_sim_s)
        self._update_next_event()

    def reprioritize(self, priorities: Mapping[int, int], now_sim_s: float) -> None:
        """Give requests that are here another priority, by id."""
        for _, id, request in self._loading:
            request.priority = priorities.get(id, request.priority)
        self._pool.reprioritize(priorities, now_sim_s)
        self._update_next_event()

    def abort(self, request_id: int, now_sim_s: float) -> None:
        """Interrupt a request; `advance` returns it when it has left."""
        self._leaving.add(request_id)
        if self._stops_loading(request_id, now_sim_s):
            self._not_begun.append((now_sim_s, request_id))
        else:
            self._pool.abort(request_id, now_sim_s, keep=True)
        self._update_next_event()

    def withdraw(self, request_id: int, now_sim_s: float) -> None:
        """Interrupt a request that waits in the engine, if there is one with this id."""
        waits = request_id in self._requests and request_id not in self._pool.progress()
        if waits and request_id not in self._leaving:
            self.abort(request_id, now_sim_s)

    def cancel(self, request_id: int, now_sim_s: float) -> None:
        """End a request, if there is one with this id; `advance` does not return it."""
        if self._requests.pop(request_id, None) is None or request_id in self._leaving:
            self._pool.discard(request_id, now_sim_s)
        elif not self._stops_loading(request_id, now_sim_s):
            self._leaving.add(request_id)
            self._pool.abort(request_id, now_sim_s)
        self._update_next_event()

    def _submit_loaded(self, now_sim_s: float) -> None:
        """Give the engine what has loaded by now."""
        while self._loading and self._loading[0][0] <= now_sim_s:
            ready_sim_s, id, request = heappop(self._loading)
            self._pool.submit(id, request.work, ready_sim_s)

    def _stops_loading(self, request_id: int, now_sim_s: float) -> bool:
        """Whether the request was still loading. The transfer goes on: its links stay busy."""
        self._submit_loaded(now_sim_s)
        others = [one for one in self._loading if one[1] != request_id]
        was_loading = len(others) < len(self._loading)
        heapify(others)
        self._loading = others
        return was_loading

    def _account(self, request: SimulatedRequest, completion: Completion) -> None:
        """Account for a stay in the engine, without the time waited there."""
        if completion.first_token_sim_s < inf:
            start = request.start
            prefill = Request(
                request.prompt_tokens, 1, 0, (), start.reused_tokens, start.reused_share
            )
            chunked = self._options.chunked_prefill
            alone_s = InstancePool.isolated_sim_s(self._profile, prefill, chunked)
            begun_sim_s = max(request.submitted_sim_s, completion.first_token_sim_s - alone_s)
            stay_sim_s = completion.last_token_sim_s - begun_sim_s
            request.served_sim_s += stay_sim_s - completion.preempted_sim_s
            request.first_token_sim_s = min(request.first_token_sim_s, completion.first_token_sim_s)
        request.generated_tokens += completion.output_tokens
