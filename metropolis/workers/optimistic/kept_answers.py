"""Answers of models, kept until their step is final."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping

from metropolis.llm.base import Completion
from metropolis.llm.journal import Answers, Key
from metropolis.types import Step


class KeptAnswers:
    """The answers above the floor, in memory; `journal` keeps all of them, if there is one."""

    def __init__(self, journal: Answers | None, bought: Mapping[Key, Completion]) -> None:
        """`bought`: answers for steps ahead, from before this run was resumed."""
        self._journal = journal
        self._kept: defaultdict[Step, dict[Key, Completion]] = defaultdict(dict)
        for key, completion in bought.items():
            self._kept[key.step][key] = completion

    def get(self, key: Key) -> Completion | None:
        """See Answers."""
        known = self._kept[key.step].get(key)
        return known if known or self._journal is None else self._journal.get(key)

    def answers(self) -> Iterable[Completion]:
        """See Answers."""
        return () if self._journal is None else self._journal.answers()

    def put(self, key: Key, completion: Completion) -> Awaitable[None] | None:
        """See Answers."""
        self._kept[key.step][key] = completion
        return None if self._journal is None else self._journal.put(key, completion)

    def collect(self, floor: Step) -> None:
        """Forget the answers of steps below `floor`."""
        for step in [step for step in self._kept if step < floor]:
            del self._kept[step]

    def flush(self) -> None:
        """See Answers."""
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """See Answers."""
        if self._journal is not None:
            self._journal.close()
