"""Simulated LLM latency for live runs: answers arrive at once, but take virtual time.

The event loop's clock stands still while any task can run. When none can and calls are waiting,
virtual time leaps to the next completion of the simulated instances (DESIGN §6).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import metropolis._core as _core
from metropolis.llm.base import Backend, Completion, RefusedError, Request
from metropolis.types import AgentId, Step


@dataclass(slots=True)
class _Asked:
    order: tuple[Step, AgentId, int]
    tokens: _core.Request
    answered: asyncio.Future[None]


class VirtualInstances:
    """A backend that adds the latency of simulated instances to `backend`'s answers.

    Raises RefusedError for calls that exceed an instance's memory.
    """

    def __init__(
        self,
        backend: Backend,
        profile: _core.Profile,
        instances: int,
        *,
        step_priority: bool = True,
    ) -> None:
        self._backend = backend
        self._profile = profile
        self._pool = _core.InstancePool(profile, instances=instances)
        self._step_priority = step_priority
        self._asked: list[_Asked] = []
        """Calls of this instant."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
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
        completion = await self._backend.complete(request)
        priority = request.priority if self._step_priority else 0
        lengths = max(1, completion.prompt_tokens), max(1, completion.output_tokens)
        tokens = _core.Request(*lengths, priority)  # an empty answer takes an iteration, too
        try:
            _core.InstancePool(self._profile).submit(0, tokens, 0.0)
        except ValueError as error:
            raise RefusedError(f"{request.where}: {error}") from error
        answered = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked((request.step, request.agent, request.number), tokens, answered))
        await answered
        return completion

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The whole answer in one piece."""
        completion = await self.complete(request)
        yield completion.text
        yield completion

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._backend.close()

    def leap(self) -> bool:
        """Advance to the next completion; False when no call is waiting."""
        self._submit()
        while self._waiting:
            self.now_sim_s = self._pool.next_event_sim_s()
            completions = self._pool.advance(self.now_sim_s)
            for completion in completions:
                answered = self._waiting.pop(completion.id)
                if not answered.cancelled():
                    answered.set_result(None)
            if completions:
                return True
        return False

    def _submit(self) -> None:
        """Submit the calls of this instant to the instances, in the same order as a replay."""
        for asked in sorted(self._asked, key=lambda asked: asked.order):
            if not asked.answered.cancelled():
                self._pool.submit(self._sent, asked.tokens, self.now_sim_s)
                self._waiting[self._sent] = asked.answered
                self._sent += 1
        self._asked.clear()


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
