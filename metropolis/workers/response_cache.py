"""Answers of language models, kept in a store until the commit of their step.

An agent continues while its answer is being stored, but gets its next answer only once that is
done. An answer that ends its step is stored by the commit. So a kill loses only the answers in
flight, from the model or to the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from metropolis.llm.base import Completion
from metropolis.llm.journal import Answers, JournalFront, Key
from metropolis.store.base import Store, StoreError, StoreUnavailableError
from metropolis.store.claim import Claim
from metropolis.store.execution import Execution, PaidAnswers
from metropolis.types import AgentId
from metropolis.workers.leases import retry_async

END_S = 1.0
"""How long a worker that ends waits for answers in flight."""


class StoredAnswers(JournalFront):
    """The answers for the steps in progress in this process, whichever worker bought them.

    With a `journal` every answer bought here is written there, too, permanently. The store counts
    them as purchases of `buyer`.
    """

    def __init__(self, store: Store, journal: Answers | None = None, buyer: str = "") -> None:
        super().__init__(journal)
        self._sync_store, self.async_store, self._buyer = store, store.async_store(), buyer
        self._known: dict[AgentId, dict[Key, Completion]] = defaultdict(dict)
        self._claims: Counter[AgentId] = Counter()
        self._unsent: dict[AgentId, dict[Key, Completion]] = {}
        """Not sent yet: the step may end in this iteration of the event loop."""
        self._in_flight: dict[AgentId, asyncio.Task[Any]] = {}
        self._is_away = False
        """Whether the store did not respond when a claim was to be given back."""
        self.workers = 0
        """Workers of this process that use it; the last one that ends calls `end`."""

    def take(self, agents: Iterable[AgentId], answers: Mapping[Key, Completion]) -> None:
        """Add the answers that a claim of `agents` contains."""
        self._claims.update(agents)
        for key, completion in answers.items():
            self._known[key.agent][key] = completion

    def forget(self, agents: Iterable[AgentId]) -> None:
        """Undo `take`."""
        for agent in agents:
            self._claims[agent] -= 1
            if not self._claims[agent]:  # otherwise another worker runs the same step
                del self._claims[agent]
                self._known.pop(agent, None)

    def get(self, key: Key) -> Completion | None:
        """The answer already paid for; None when there is none."""
        return self._known.get(key.agent, {}).get(key) or super().get(key)

    def put(self, key: Key, completion: Completion) -> Awaitable[None] | None:
        """Keep an answer; unless None, await the result before the agent sees the answer."""
        if self._journal is not None:
            self._journal.put(key, completion)
        earlier = self._in_flight.get(key.agent)
        self._remember(key, completion)
        return None if earlier is None or earlier.done() else _end_of(earlier)

    def commit(
        self,
        claim: Claim,
        execution: Execution,
        lease_s: float | None,
    ) -> asyncio.Task[Claim | bool]:
        """The store's commit, including the answers not stored yet."""
        unsent: dict[Key, Completion] = {}
        before = []
        for agent in claim.agents:
            waiting = self._unsent.get(agent, {})
            for key in [key for key in waiting if key.step == claim.step]:
                unsent[key] = waiting.pop(key)
            if agent in self._in_flight:
                before.append(self._in_flight[agent])
        committing = self._commit(claim, execution, lease_s, unsent, before)
        task = asyncio.ensure_future(committing)
        self._in_flight |= dict.fromkeys(claim.agents, task)  # later writes come after it
        return task

    async def _commit(
        self,
        claim: Claim,
        execution: Execution,
        lease_s: float | None,
        unsent: PaidAnswers,
        before: Iterable[asyncio.Task[Any]],
    ) -> Claim | bool:
        """Raises StoreError when an answer cannot be kept."""
        arguments = claim, execution, unsent, self._buyer, lease_s
        committed = await retry_async(self.async_store.commit, *arguments)
        if not committed:
            for key, completion in unsent.items():  # they are paid for in any case
                await retry_async(self.async_store.keep_answer, key, completion, self._buyer)
        for task in before:
            await task
        return committed

    def give_back(self, claim: Claim) -> None:
        """Let others claim the cluster, if the store responds; the claim expires anyway.

        A store that does not respond is not asked again for each further claim.
        """
        if self._is_away:
            return
        try:
            self._sync_store.give_back(claim)
        except StoreError as error:
            self._is_away = isinstance(error, StoreUnavailableError)

    async def end(self) -> None:
        """Let pending answers arrive, if the store responds; then close the connections."""
        for agent in list(self._unsent):
            self._send(agent)
        if self._in_flight:
            await asyncio.wait(self._in_flight.values(), timeout=END_S)
        for task in self._in_flight.values():
            task.cancel()
        await self.async_store.close()

    def _remember(self, key: Key, completion: Completion) -> None:
        self._known[key.agent][key] = completion
        if key.agent not in self._unsent:
            self._unsent[key.agent] = {}
            asyncio.get_running_loop().call_soon(self._send, key.agent)
        self._unsent[key.agent][key] = completion

    def _send(self, agent: AgentId) -> None:
        if unsent := self._unsent.pop(agent, None):  # `end` has sent them already
            before = self._in_flight.get(agent)
            task = self._in_flight[agent] = asyncio.ensure_future(self._store(unsent, before))
            task.add_done_callback(_read)

    async def _store(self, unsent: PaidAnswers, before: asyncio.Task[Any] | None) -> None:
        if before is not None:
            await before
        for key, completion in unsent.items():
            await retry_async(self.async_store.keep_answer, key, completion, self._buyer)


async def _end_of(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


def _read(task: asyncio.Task[Any]) -> None:
    """Take note of a failure: the run ends with it at the next commit of the agent."""
    if not task.cancelled():
        task.exception()
