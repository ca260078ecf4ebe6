"""Where agents that run ahead decide: in this process, or in others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from metropolis.llm.agent import Sender
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.executions import OneProceed
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.world.base import Agent


class WorkerLostError(Exception):
    """The process in which an execution ran has ended."""


class Decisions(Protocol):
    """Runs `Agent.proceed` of executions."""

    async def decide(self, one: OneProceed, agent: Agent, observation: Any) -> tuple[Any, Mind]:
        """The action of `agent`, and its mind afterwards.

        Raises WorkerLostError if the execution must be repeated, and what the agent raises.
        """

    def start(self, client: Sender, on_failure: Callable[[Exception], object]) -> None:
        """Begin, on the event loop; calls go through `client`, `on_failure` ends the run."""

    async def end(self) -> None:
        """Stop: no further decision is awaited."""


class LocalDecisions:
    """See Decisions; in this process, whose LocalWorker sends the calls."""

    def __init__(self, local: LocalWorker, minds: Minds) -> None:
        self._local, self._minds = local, minds

    async def decide(self, one: OneProceed, agent: Agent, observation: Any) -> tuple[Any, Mind]:
        """See Decisions."""
        action = await self._local.decide(agent, observation, one.llm)
        return action, self._minds.of(one.number, agent, one.before.saved)

    def start(self, client: Sender, on_failure: Callable[[Exception], object]) -> None:
        """See Decisions."""

    async def end(self) -> None:
        """See Decisions."""
