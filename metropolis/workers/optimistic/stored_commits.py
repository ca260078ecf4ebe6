"""Commits of final results to a store beyond this process's memory.

A result is sent once the store has acknowledged the earlier steps of its agents, as committed from
here: so nothing is based on the step of another worker, whose answers may differ.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.claim import Claim
from metropolis.store.execution import Execution
from metropolis.types import AgentId, Step
from metropolis.workers.leases import retry_async
from metropolis.workers.optimistic.commits import Name
from metropolis.workers.response_cache import END_S, StoredAnswers
from metropolis.world.parts import Parts, changed_parts

WAIT_S = 0.25
"""The longest delay of the end."""


class StoredCommits:
    """Claims clusters and commits their results; see Commits."""

    def __init__(
        self,
        name: str,
        store: Store,
        answers: StoredAnswers,
        lease_s: float,
        first_step: Step,
        agents: int,
    ) -> None:
        """`name` is unique to this object; all agents are at `first_step`."""
        self._name, self._store, self._answers = name, store, answers
        self._async_store = answers.async_store
        self._lease_s, self._first = lease_s, first_step
        self._steps = [first_step] * agents
        """The steps of the agents, as acknowledged."""
        self._minds: dict[AgentId, Parts] = {}
        """After the last result that was added."""
        self._due: dict[Name, Execution] = {}
        """Results that are not acknowledged."""
        self._claims: dict[AgentId, Claim] = {}
        """The claim of each agent, until its result is acknowledged."""
        self._sent: defaultdict[Name, set[int]] = defaultdict(set)
        """The numbers of the claims with which a result was sent."""
        self._committed: set[tuple[Name, int]] = set()
        """Results that are committed and not acknowledged, and the numbers of their claims."""
        self._claiming: asyncio.Task[None] | None = None
        self._on_failure: Callable[[BaseException], None] = lambda _: None

    async def begin(self) -> Mapping[AgentId, Parts]:
        """Claim the first step of all agents; returns their minds.

        Raises StoreError if another worker has run that step.
        """
        self._loop = asyncio.get_running_loop()
        while len(self._claims) < len(self._steps):
            for claim in await self._claim():
                if claim.step != self._first:
                    raise _by_another(claim.step - 1, claim.agents)
                self._minds |= claim.minds
        return dict(self._minds)

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """See Commits."""
        self._on_failure = on_failure
        self._claiming = self._loop.create_task(self._claim_all())
        self._claiming.add_done_callback(self._report)

    def add(self, execution: Execution, minds: Mapping[AgentId, Parts]) -> None:
        """See Commits."""
        changes = {}
        for agent, saved in minds.items():
            changes[agent] = changed_parts(self._minds[agent], saved)
            self._minds[agent] = saved
        self._due[execution.step, execution.agents] = replace(execution, minds=changes)
        self._flush(execution.agents[0])

    def acknowledge(self, execution: Execution) -> None:
        """The store has committed `execution`. Raises StoreError if another worker sent it."""
        if execution.step < self._first:
            return
        name = execution.step, execution.agents
        sent = self._sent.pop(name, set())
        if execution.attempt not in sent:
            raise _by_another(*name)
        self._committed -= {(name, number) for number in sent}
        del self._due[name]
        for agent in execution.agents:
            self._steps[agent] = execution.step + 1
            claim = self._claims.get(agent)
            if claim is not None and claim.step == execution.step:
                self._drop(claim)
        for agent in execution.agents:
            self._flush(agent)

    def renew(self) -> None:
        """Renew all claims, in the thread of the heartbeat."""
        for claim in self._open():
            try:
                held = self._store.extend(claim, self._lease_s)
            except StoreUnavailableError:
                return  # it may return before the claims expire
            except StoreError as error:
                self._loop.call_soon_threadsafe(self._on_failure, error)
                return
            if not held:  # it is committed, or ready again
                self._loop.call_soon_threadsafe(self._drop, claim)
            elif (_name(claim), claim.number) in self._committed:  # a restart has lost the commit
                self._loop.call_soon_threadsafe(self._repeat, claim)

    async def end(self) -> None:
        """Let commits in flight arrive; give back the other claims."""
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.wait([self._claiming])
        await self._answers.end()
        for claim in self._open():
            self._answers.give_back(claim)

    async def _claim_all(self) -> None:
        while True:
            await self._claim()

    async def _claim(self) -> list[Claim]:
        claiming = partial(self._async_store.claims, most=len(self._steps), own=False)
        request = asyncio.ensure_future(retry_async(claiming, self._name, self._lease_s, WAIT_S))
        try:
            claims = await asyncio.shield(request)
        except asyncio.CancelledError:
            with suppress(StoreError, TimeoutError):  # the claims expire anyway
                for claim in await asyncio.wait_for(request, END_S):
                    self._answers.give_back(claim)
            raise
        for claim in claims:
            for agent in claim.agents:
                if agent in self._claims:  # it was lost, or is not acknowledged yet
                    self._drop(self._claims[agent])
            self._claims |= dict.fromkeys(claim.agents, claim)
            self._answers.take(claim.agents, claim.answers)
            self._flush(claim.agents[0])
        return claims

    def _flush(self, agent: AgentId) -> None:
        """Send the result of the agent's next step, if it is final, claimed and not sent."""
        claim = self._claims.get(agent)
        if claim is None or any(self._steps[member] != claim.step for member in claim.agents):
            return
        name = _name(claim)
        execution = self._due.get(name)
        if execution is None or claim.number in self._sent.get(name, ()):
            return
        self._sent[name].add(claim.number)
        self._send(claim, execution)

    def _repeat(self, claim: Claim) -> None:
        """Send a result again, unless it is acknowledged."""
        execution = self._due.get(_name(claim))
        if execution is not None and self._claims.get(claim.agents[0]) is claim:
            self._send(claim, execution)

    def _send(self, claim: Claim, execution: Execution) -> None:
        execution = replace(execution, attempt=claim.number)
        # If it is refused, it is sent again once the cluster is claimed again.
        task = self._answers.commit(claim, execution, None)
        task.add_done_callback(partial(self._on_sent, claim))

    def _on_sent(self, claim: Claim, task: asyncio.Task[Claim | bool]) -> None:
        self._report(task)
        name = _name(claim)
        is_open = name in self._sent
        if is_open and not task.cancelled() and task.exception() is None and task.result():
            self._committed.add((name, claim.number))

    def _report(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    def _open(self) -> list[Claim]:
        return list({claim.id: claim for claim in list(self._claims.values())}.values())

    def _drop(self, claim: Claim) -> None:
        """Forget a claim, unless that has happened."""
        if self._claims.get(claim.agents[0]) is claim:
            for agent in claim.agents:
                del self._claims[agent]
            self._answers.forget(claim.agents)


def _name(claim: Claim) -> Name:
    return claim.step, claim.agents


def _by_another(step: Step, agents: tuple[AgentId, ...]) -> StoreError:
    return StoreError(
        f"step {step} of agents {agents} was committed by another worker; resume the run"
    )
