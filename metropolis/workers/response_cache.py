"""Answers of language models, kept in a store until the step they belong to is committed.

An agent goes on while its answer is on the way to the store, and with the next one when it is
there. An answer that ends its step goes with the commit. So what a kill loses is what was in
flight, from the model or to the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from metropolis.llm.base import Completion
from metropolis.llm.journal import Answers, Key
from metropolis.store.base import Store
from metropolis.store.claim import Claim
from metropolis.store.outcome import Outcome, PaidAnswers
from metropolis.types import AgentId
from metropolis.workers.leases import retry_async
from metropolis.world.parts import Changes

END_S = 1.0
"""How long a worker that ends waits for answers on the way."""


class StoredAnswers:
    """Knows what has been answered in the steps that are at work here, by whomever it was asked.

    With a `journal` every answer bought here is written there, too, and kept for good. `buyer` is
    in whose name the store counts them.
    """

    def __init__(self, store: Store, journal: Answers | None = None, buyer: str = "") -> None:
        self.link, self._journal, self._buyer = store.link(), journal, buyer
        self._known: dict[AgentId, dict[Key, Completion]] = defaultdict(dict)
        self._at_work: Counter[AgentId] = Counter()
        self._fresh: dict[AgentId, dict[Key, Completion]] = {}
        """Not sent yet: the step may end in this turn of the loop."""
        self._on_the_way: dict[AgentId, asyncio.Task[Any]] = {}

    def take(self, agents: Iterable[AgentId], answers: Mapping[Key, Completion]) -> None:
        """What a claim of `agents` has brought."""
        self._at_work.update(agents)
        for key, completion in answers.items():
            self._known[key.agent][key] = completion

    def forget(self, agents: Iterable[AgentId]) -> None:
        """The end of what began with `take`."""
        for agent in agents:
            self._at_work[agent] -= 1
            if not self._at_work[agent]:  # else another worker runs the same step
                del self._at_work[agent]
                self._known.pop(agent, None)

    def get(self, key: Key) -> Completion | None:
        """The answer already paid for; None when there is none."""
        known = self._known.get(key.agent, {}).get(key)
        return known if known or self._journal is None else self._journal.get(key)

    def answers(self) -> Iterable[Completion]:
        """All answers of the run that are known here."""
        return () if self._journal is None else self._journal.answers()

    def put(self, key: Key, completion: Completion) -> Awaitable[None] | None:
        """Keep an answer; to be awaited before its agent sees it, unless None."""
        if self._journal is not None:
            self._journal.put(key, completion)
        if self._is_on_the_way(key.agent):
            return self._take_next(key, completion)
        self._take(key, completion)
        return None

    def commit(
        self,
        claim: Claim,
        outcome: Outcome,
        minds: Mapping[AgentId, Changes],
        lease_s: float | None,
    ) -> asyncio.Task[Claim | bool]:
        """As the store's, with the answers that are kept nowhere yet."""
        fresh: dict[Key, Completion] = {}
        before = []
        for agent in claim.agents:
            fresh |= self._fresh.pop(agent, {})
            if agent in self._on_the_way:
                before.append(self._on_the_way[agent])
        committing = self._commit(claim, outcome, minds, lease_s, fresh, before)
        task = asyncio.ensure_future(committing)
        self._on_the_way |= dict.fromkeys(claim.agents, task)  # whoever goes on comes after it
        return task

    async def _commit(
        self,
        claim: Claim,
        outcome: Outcome,
        minds: Mapping[AgentId, Changes],
        lease_s: float | None,
        fresh: PaidAnswers,
        before: Iterable[asyncio.Task[Any]],
    ) -> Claim | bool:
        """Raises StoreError when an answer cannot be kept."""
        said = claim, outcome, minds, fresh, self._buyer, lease_s
        committed = await retry_async(self.link.commit, *said)
        if not committed:
            for key, completion in fresh.items():  # they are bought all the same
                await retry_async(self.link.keep_answer, key, completion, self._buyer)
        for sent in before:
            await sent
        return committed

    async def end(self) -> None:
        """Let what is on the way arrive, if the store answers; then close the link."""
        if self._on_the_way:
            await asyncio.wait(self._on_the_way.values(), timeout=END_S)
        for sent in self._on_the_way.values():
            sent.cancel()
        await self.link.close()

    def _is_on_the_way(self, agent: AgentId) -> bool:
        return agent in self._on_the_way and not self._on_the_way[agent].done()

    async def _take_next(self, key: Key, completion: Completion) -> None:
        while self._is_on_the_way(key.agent):
            await asyncio.wait([self._on_the_way[key.agent]])
        self._take(key, completion)

    def _take(self, key: Key, completion: Completion) -> None:
        self._known[key.agent][key] = completion
        if key.agent not in self._fresh:
            self._fresh[key.agent] = {}
            asyncio.get_running_loop().call_soon(self._send, key.agent)
        self._fresh[key.agent][key] = completion

    def _send(self, agent: AgentId) -> None:
        fresh = self._fresh.pop(agent, None)
        if fresh is not None:
            before = self._on_the_way.get(agent)
            self._on_the_way[agent] = asyncio.ensure_future(self._keep(fresh, before))

    async def _keep(self, fresh: PaidAnswers, before: asyncio.Task[Any] | None) -> None:
        if before is not None:
            await before
        for key, completion in fresh.items():
            await retry_async(self.link.keep_answer, key, completion, self._buyer)

    def flush(self) -> None:
        """Let what is written survive a power cut."""
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
