"""Final results on their way to the store, which needs each once its claims include it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

from metropolis.store.claim import Claim
from metropolis.store.execution import Execution
from metropolis.store.memory import MemoryStore
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.workers.optimistic.minds import CommittedMinds
from metropolis.world.parts import Parts

NAME = "optimistic"
Name = tuple[Step, tuple[AgentId, ...]]
"""A cluster: its step and members."""


class Commits(Protocol):
    """Commits final results."""

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Claim clusters from now on; `on_failure` gets the error that ends it."""

    def add(self, execution: Execution, minds: Mapping[AgentId, Parts]) -> None:
        """Commit a final result with the minds after it, once the store has claimed it.

        Results of an agent are added in the order of their steps.
        """


class SharedCommits:
    """Commits to a store in this process's memory, at once; see Commits."""

    def __init__(self, store: MemoryStore, minds: CommittedMinds) -> None:
        """`minds` are the minds of the store."""
        self._store, self._minds = store, minds
        self._agents = len(minds)
        self._due: dict[Name, tuple[Execution, Mapping[AgentId, Parts]]] = {}
        self._claims: dict[Name, Claim] = {}

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """See Commits."""
        self._on_failure = on_failure
        self._store.watch("ready", self._claim)
        self._claim()

    def add(self, execution: Execution, minds: Mapping[AgentId, Parts]) -> None:
        """See Commits."""
        name = execution.step, execution.agents
        self._due[name] = execution, minds
        self._flush(name)

    def _claim(self) -> None:
        try:
            for claim in self._store.claims(NAME, inf, most=self._agents):
                name = claim.step, claim.agents
                self._claims[name] = claim
                self._flush(name)
        except MetropolisError as error:
            self._on_failure(error)

    def _flush(self, name: Name) -> None:
        if name not in self._due or name not in self._claims:
            return
        execution, minds = self._due.pop(name)
        for agent, saved in minds.items():
            self._minds.commit(agent, saved)
        self._store.commit(self._claims.pop(name), execution)

    def end(self) -> None:
        """Claim nothing more."""
        self._store.unwatch("ready", self._claim)
