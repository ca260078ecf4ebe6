"""Access to a store from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.claim import NOWHERE, Claim, Lookahead
from metropolis.store.outcome import NO_ANSWERS, Outcome, PaidAnswers
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.parts import Changes

if TYPE_CHECKING:
    from metropolis.store.base import Acknowledged, Store


class Link:
    """The frequent calls of workers and controllers, for coroutines of one event loop.

    See Store. These run in threads; a store with native async access overrides them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def claims(
        self, worker: str, lease_s: float, wait_s: float, *, most: int, own: bool
    ) -> list[Claim]:
        """See Store."""
        return await asyncio.to_thread(
            self._store.claims, worker, lease_s, wait_s, most=most, own=own
        )

    async def keep_answer(self, key: Key, completion: Completion, buyer: str) -> None:
        """See Store."""
        await asyncio.to_thread(self._store.keep_answer, key, completion, buyer)

    async def commit(
        self,
        claim: Claim,
        outcome: Outcome,
        minds: Mapping[AgentId, Changes],
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        said = claim, outcome, minds, answers, buyer, lease_s
        return await asyncio.to_thread(self._store.commit, *said)

    async def acknowledgements(self, after: str, wait_s: float) -> list[Acknowledged]:
        """See Store."""
        return await asyncio.to_thread(self._store.acknowledgements, after, wait_s)

    async def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NOWHERE,
    ) -> None:
        """See Store."""
        await asyncio.to_thread(self._store.dispatch, fence, clusters, edges, floor, ahead)

    async def close(self) -> None:
        """Close the connections; the next call reopens them."""
