"""Which speculative requests are needed by now.

The promotion of a program holds for its later requests, too: it may overtake a request on the way,
and a request may be sent again.
"""

from __future__ import annotations

from collections import defaultdict

from metropolis.policy.base import QueuedRequest

KEPT_S = 60.0
PROGRAMS_MAX = 10_000


class Promotions:
    """The speculative requests in progress, and the programs that were promoted lately."""

    def __init__(self) -> None:
        self._speculative: defaultdict[str, set[int]] = defaultdict(set)
        """Ids of the requests, by program."""
        self._promoted_s: dict[str, float] = {}
        """Program -> when it was promoted, the earliest first."""

    def __len__(self) -> int:
        """The number of programs with speculative requests in progress."""
        return len(self._speculative)

    def is_promoted(self, program: str) -> bool:
        """Whether the requests of `program` are needed."""
        return program in self._promoted_s

    def promote(self, program: str, now_s: float) -> set[int]:
        """The requests of `program` are needed; returns the ids of those in progress."""
        self._promoted_s.pop(program, None)
        self._promoted_s[program] = now_s
        if len(self._promoted_s) > PROGRAMS_MAX:
            del self._promoted_s[next(iter(self._promoted_s))]
        return self._speculative.pop(program, set())

    def begin(self, request: QueuedRequest) -> None:
        """A speculative request has arrived."""
        self._speculative[request.program].add(request.id)

    def end(self, request: QueuedRequest) -> None:
        """A request has left."""
        if request.program in self._speculative:
            self._speculative[request.program].discard(request.id)
            if not self._speculative[request.program]:
                del self._speculative[request.program]

    def sweep(self, now_s: float) -> None:
        """Forget promotions that are older than `KEPT_S`."""
        while self._promoted_s:
            program, since_s = next(iter(self._promoted_s.items()))
            if now_s - since_s < KEPT_S:
                return
            del self._promoted_s[program]
