"""Answers of models, kept until their step is final."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Mapping

from metropolis.llm.base import Completion
from metropolis.llm.journal import Answers, JournalFront, Key
from metropolis.types import Step


class KeptAnswers(JournalFront):
    """The answers above the floor, in memory; `journal` keeps all of them, if there is one."""

    def __init__(self, journal: Answers | None, bought: Mapping[Key, Completion]) -> None:
        """`bought`: answers for steps ahead, from before this run was resumed."""
        super().__init__(journal)
        self._kept: defaultdict[Step, dict[Key, Completion]] = defaultdict(dict)
        for key, completion in bought.items():
            self._kept[key.step][key] = completion

    def get(self, key: Key) -> Completion | None:
        """See Answers."""
        return self._kept[key.step].get(key) or super().get(key)

    def put(self, key: Key, completion: Completion) -> Awaitable[None] | None:
        """See Answers."""
        self._kept[key.step][key] = completion
        return None if self._journal is None else self._journal.put(key, completion)

    def collect(self, floor: Step) -> None:
        """Forget the answers of steps below `floor`."""
        for step in [step for step in self._kept if step < floor]:
            del self._kept[step]
