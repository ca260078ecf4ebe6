"""Answers of language models, kept in a store until the step they belong to is committed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping

from metropolis.llm.base import Completion
from metropolis.llm.client import Answers
from metropolis.llm.journal import Key
from metropolis.store.base import Store
from metropolis.types import AgentId
from metropolis.workers.leases import awaited


class StoredAnswers:
    """Knows what has been answered in the steps that are at work here, by whomever it was asked.

    With a `journal` every answer bought here is written there, too, and kept for good. `buyer` is
    in whose name the store counts them.
    """

    def __init__(self, store: Store, journal: Answers | None = None, buyer: str = "") -> None:
        self.link, self._journal, self._buyer = store.link(), journal, buyer
        self._known: dict[AgentId, dict[Key, Completion]] = defaultdict(dict)
        self._at_work: Counter[AgentId] = Counter()

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

    def put(self, key: Key, completion: Completion) -> Awaitable[None]:
        """Keep an answer, before its agent sees it."""
        if self._journal is not None:
            self._journal.put(key, completion)
        return self._keep(key, completion)

    async def _keep(self, key: Key, completion: Completion) -> None:
        await awaited(self.link.keep_answer, key, completion, self._buyer)
        self._known[key.agent][key] = completion

    def flush(self) -> None:
        """Let what is written survive a power cut."""
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
