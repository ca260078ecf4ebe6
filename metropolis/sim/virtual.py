"""Simulated LLM latency for live runs: answers arrive at once, but take virtual time.

The event loop's clock stands still while any task can run. When none can and calls are waiting,
virtual time leaps to the next completion of the simulated instances.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass, replace
from math import isinf

import metropolis._core as _core
from metropolis.dispatch.base import Dispatcher
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.llm.base import Backend, Completion, RefusedError, Request, Service
from metropolis.llm.tokens import prefix_pieces
from metropolis.policy.base import SPECULATIVE_PRIORITY, Policy, QueuedRequest
from metropolis.policy.fixed import StepFirst
from metropolis.sim.agent_programs import AgentPrograms
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.fleet import SimulatedFleet
from metropolis.types import AgentId, MetropolisError, Step


@dataclass(slots=True)
class _Call:
    request: Request
    model: str
    lengths: _core.Request
    completed: asyncio.Future[Service]
    number: int | None = None
    """The number of the call on the instances; None until it is submitted."""

    @property
    def order(self) -> tuple[bool, Step, AgentId, int]:
        request = self.request
        return request.speculative, request.step, request.agent, request.number


class VirtualInstances:
    """A backend that adds the latency of simulated instances to `backend`'s answers.

    `policy` and `dispatcher` order and place the calls as in a replay. The default is `step` and
    `least_used`. `choice` says which cache a prefill starts from; fleet and dispatcher are then
    those of `choice.fleet`. Raises RefusedError for calls that exceed the memory of one of the
    instances, and for calls whose model no instance hosts.
    """

    def __init__(
        self,
        backend: Backend,
        fleet: SimulatedFleet,
        *,
        policy: Policy | None = None,
        dispatcher: Dispatcher | None = None,
        choice: CacheChoice | None = None,
    ) -> None:
        self._backend = backend
        self._profiles = [kind.profile for kind in fleet.kinds]
        self._fleet, self._hosted = fleet, fleet.hosted
        self.reused = None if choice is None else choice.counts
        """Counts of the caches that calls started from; None: no plug-in chooses caches."""
        self._instances: _ByStep | _ByPolicy
        is_plain = policy is None and dispatcher is None and choice is None
        if is_plain and len(self._profiles) == 1:
            self._instances = _ByStep(fleet)
        else:
            dispatcher = dispatcher or LeastLoaded(fleet.dispatcher_view())
            self._instances = _ByPolicy(fleet, policy or StepFirst(), dispatcher, choice)
        self._arrived: list[_Call] = []
        """Calls that arrived at this instant and are not submitted yet."""
        self._waiting: dict[int, asyncio.Future[Service]] = {}
        self._speculative: dict[int, _Call] = {}
        """The waiting calls that are speculative."""
        self._sent = 0
        self.now_sim_s = 0.0
        """Current virtual time."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self._backend.name

    def __str__(self) -> str:
        return str(self._backend)

    async def check(self) -> None:
        """See `Backend.check`."""
        await self._backend.check()

    async def complete(self, request: Request) -> Completion:
        """The answer, at the virtual time of its completion."""
        model = request.model or self.name
        if self._hosted is not None and model not in self._hosted:
            try:
                self._fleet.check_hosts([model])
            except MetropolisError as error:
                raise RefusedError(f"{request.where}: {error}") from error
        completion = await self._backend.complete(request)
        # An empty answer takes an iteration, too.
        lengths = _core.Request(max(1, completion.prompt_tokens), max(1, completion.output_tokens))
        for profile in self._profiles:
            try:
                _core.InstancePool.check_fits(profile, lengths)
            except ValueError as error:
                raise RefusedError(f"{request.where}: {error}") from error
        completed = asyncio.get_running_loop().create_future()
        call = _Call(request, model, lengths, completed)
        self._arrived.append(call)
        try:
            service = await completed
        except asyncio.CancelledError:
            self._abort(call)
            raise
        return completion.with_service(service)

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The whole answer in one piece."""
        completion = await self.complete(request)
        yield completion.text
        yield completion

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._backend.close()

    def _abort(self, call: _Call) -> None:
        """Free the instance of an abandoned call."""
        if call.number is not None and self._waiting.pop(call.number, None) is not None:
            self._speculative.pop(call.number, None)
            self._instances.abort(call.number, self.now_sim_s)

    def promote(self, request: Request) -> None:
        """See Promoter."""
        for call in [*self._arrived, *self._speculative.values()]:
            other = call.request
            is_needed = (other.agent, other.step) == (request.agent, request.step)
            if other.speculative and is_needed:
                call.request = replace(other, speculative=False)
                if call.number is not None and self._instances.promote(call.number, self.now_sim_s):
                    del self._waiting[call.number], self._speculative[call.number]
                    call.number = None
                    self._arrived.append(call)

    def leap(self) -> bool:
        """Advance to the next completion; False when no call is waiting."""
        self._submit()
        while self._waiting:
            self.now_sim_s = self._instances.next_event_sim_s(self.now_sim_s)
            served = self._instances.advance(self.now_sim_s)
            for number, service in served:
                self._speculative.pop(number, None)
                completed = self._waiting.pop(number, None)
                if completed is not None and not completed.done():
                    completed.set_result(service)
            if served:
                return True
        return False

    def _submit(self) -> None:
        """Submit the calls of this instant to the instances, in the same order as a replay."""
        for call in sorted(self._arrived, key=lambda call: call.order):
            if not call.completed.cancelled():
                call.number = self._sent
                self._sent += 1
                self._instances.send(call.number, call, self.now_sim_s)
                self._waiting[call.number] = call.completed
                if call.request.speculative:
                    self._speculative[call.number] = call
        self._arrived.clear()


class _ByPolicy:
    """Instances driven by the scheduler, with a policy and a dispatcher."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        policy: Policy,
        dispatcher: Dispatcher,
        choice: CacheChoice | None,
    ) -> None:
        self._cluster = SimulatedCluster(
            fleet.profiles, policy, dispatcher, fleet.pool_options(), choice=choice
        )
        self._shares_prefixes = choice is not None
        self._programs = AgentPrograms(self._cluster.program_ended)

    def send(self, number: int, call: _Call, now_sim_s: float) -> None:
        """Submit a call."""
        request, prompt_tokens = call.request, call.lengths.prompt_tokens
        program = self._programs.sent(number, request.agent, request.step, now_sim_s)
        queued = QueuedRequest(
            number,
            program.name,
            request.function,
            prompt_tokens,
            now_sim_s,
            program.arrived_sim_s,
            request.upstream,
            request.step,
            prefix=prefix_pieces(request.text, prompt_tokens) if self._shares_prefixes else (),
            model=call.model,
            speculative=request.speculative,
        )
        self._cluster.send(queued, call.lengths.output_tokens)

    def abort(self, number: int, now_sim_s: float) -> None:
        """Abort a call."""
        self._cluster.cancel(number, now_sim_s)
        self._programs.left(number)

    def promote(self, number: int, now_sim_s: float) -> bool:
        """Rank a call like others, unless it has started; False: it need not be sent again."""
        self._cluster.promote(number, now_sim_s)
        return False

    def next_event_sim_s(self, now_sim_s: float) -> float:
        """Dispatch the waiting calls; returns the time of the earliest next event."""
        self._cluster.dispatch(now_sim_s)
        next_sim_s = self._cluster.next_event_sim_s()
        if isinf(next_sim_s):
            self._cluster.check_progress()
        return next_sim_s

    def advance(self, now_sim_s: float) -> list[tuple[int, Service]]:
        """Advance to `now_sim_s`; returns the calls completed by then."""
        served = self._cluster.advance(now_sim_s)
        for one in served:
            self._programs.left(one.request.id)
        return [(one.request.id, Service(one.instance, one.latency_s)) for one in served]


class _ByStep:
    """Equal to `_ByPolicy` with the policy `step` and the dispatcher `least_used`; in C++."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._profile, self._count = fleet.profiles[0], len(fleet)
        options = fleet.pool_options()
        self._pool = _core.InstancePool(self._profile, self._count, **asdict(options))
        self._chunked_prefill = options.chunked_prefill
        self._prompt_tokens: dict[int, int] = {}
        """The prompt tokens of the calls that have not completed."""

    def send(self, number: int, call: _Call, now_sim_s: float) -> None:
        """Submit a call."""
        lengths, request = call.lengths, call.request
        priority = request.step
        if request.speculative:
            priority += SPECULATIVE_PRIORITY
        tokens = _core.Request(lengths.prompt_tokens, lengths.output_tokens, priority)
        self._prompt_tokens[number] = lengths.prompt_tokens
        self._pool.submit(number, tokens, now_sim_s)

    def abort(self, number: int, now_sim_s: float) -> None:
        """Abort a call."""
        self._pool.abort(number, now_sim_s)

    def promote(self, number: int, now_sim_s: float) -> bool:
        """Abort a call unless it has started; returns whether it was, and must be sent again."""
        for instance in range(self._count):
            if number in self._pool.progress(instance):
                return False
        self._pool.abort(number, now_sim_s)
        return True

    def next_event_sim_s(self, _now_sim_s: float) -> float:
        """The earliest next completion."""
        return self._pool.next_event_sim_s()

    def advance(self, now_sim_s: float) -> list[tuple[int, Service]]:
        """Advance to `now_sim_s`; returns the calls completed by then."""
        served = []
        for one in self._pool.advance(now_sim_s):
            prompt = _core.Request(self._prompt_tokens.pop(one.id), 1)
            if not one.aborted:
                prefill_s = self._pool.isolated_sim_s(self._profile, prompt, self._chunked_prefill)
                started_sim_s = one.first_token_sim_s - prefill_s + one.preempted_sim_s
                served.append((one.id, Service(one.instance, one.last_token_sim_s - started_sim_s)))
        return served


class IdleSelector(selectors.DefaultSelector):
    """Calls `on_idle` before the event loop would sleep; True means that it created work."""

    def __init__(self, on_idle: Callable[[], bool]) -> None:
        super().__init__()
        self._on_idle = on_idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector.select`."""
        if timeout is None or timeout > 0:
            ready = super().select(0)
            if ready or self._on_idle():
                return ready
        return super().select(timeout)
