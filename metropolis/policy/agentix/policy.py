"""PLAS and ATLAS: program-level and thread-level attained service (Agentix §4.2, algorithm 1).

A call enters the level that its program's service falls into: the quantum of a level is also the
width of its range. docs/serving.md lists what the paper leaves open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.multilevel_queue import QUANTA_S, Call, Multilevel, account
from metropolis.types import MetropolisError

BETA = 32.0
"""Ratio of a program's waiting to its service at which its calls are promoted."""


@dataclass(slots=True)
class ProcessEntry:
    """State of a running program."""

    service_s: float = 0.0
    """Engine time of the program's completed calls, in seconds."""
    waited_s: float = 0.0
    threads: dict[int, Call] = field(default_factory=dict)
    """Request id -> active call of the program."""
    positions: dict[int, int] = field(default_factory=dict)
    """Level -> the position in it of the program's first call."""


class Plas(Multilevel):
    """A program's service is the sum over its completed calls (equation 1).

    A level is first come, first served by call, or `by_program`: each call of a program takes the
    position of its first call in the level, not the end of it, so that its KV is still cached.
    Raises MetropolisError when a quantum or `beta` is not positive.
    """

    def __init__(
        self,
        quanta_s: Sequence[float] = QUANTA_S,
        beta: float = BETA,
        by_program: bool = False,
    ) -> None:
        super().__init__(quanta_s)
        self._by_program = by_program
        if not beta > 0:
            raise MetropolisError(f"beta is {beta}; it should be above 0")
        self._beta = beta
        self._table: defaultdict[str, ProcessEntry] = defaultdict(ProcessEntry)

    def program_times_s(self, program: str) -> tuple[float, float]:
        """The program's entry in the process table."""
        entry = self._table.get(program)
        return (entry.service_s, entry.waited_s) if entry else (0.0, 0.0)

    def position(self, call: Call, level: int) -> int:
        """The end of the level, or the position of its program's first call in it."""
        position = super().position(call, level)
        if not self._by_program:
            return position
        return self._table[call.request.program].positions.setdefault(level, position)

    def promotion_s(self, call: Call) -> float:
        """When the waiting of program and call reaches `beta` times their service."""
        entry = self._table[call.request.program]
        if not call.level:
            return inf
        waited_s, service_s = entry.waited_s + call.waited_s, entry.service_s + call.service_s
        return call.since_s + self._beta * service_s - waited_s

    def arrived(self, request: QueuedRequest) -> None:
        """Add the call to its program's threads."""
        super().arrived(request)
        self._table[request.program].threads[request.id] = self._calls[request.id]

    def completed(self, served: ServedRequest) -> None:
        """Update the process table and the promotion times of the siblings that have one."""
        call = self._leave(served)
        entry = self._table[call.request.program]
        del entry.threads[call.request.id]
        self.update(entry, call)
        for sibling in entry.threads.values():
            if sibling.level and not sibling.is_running:
                account(sibling, served.completed_s)  # no promotion before now
                self.expect(sibling)

    def cancelled(self, request: QueuedRequest) -> None:
        """Drop the call; its service does not count for later calls of the program."""
        super().cancelled(request)
        del self._table[request.program].threads[request.id]

    def program_ended(self, program: str) -> None:
        """Remove the program's entry."""
        self._table.pop(program, None)

    def update(self, entry: ProcessEntry, call: Call) -> None:
        """Add a completed call."""
        entry.service_s += call.service_s
        entry.waited_s += call.waited_s


class Atlas(Plas):
    """A program's service is that of its longest chain of calls (equation 2).

    As in the paper, one number per program: a call extends the chain that its program had reached
    at the call's arrival. Waiting is accounted along chains as well.
    """

    def update(self, entry: ProcessEntry, call: Call) -> None:
        """Take the chain that ends with `call`, if it is the longest so far."""
        entry.service_s = max(entry.service_s, call.program_service_s + call.service_s)
        entry.waited_s = max(entry.waited_s, call.program_waited_s + call.waited_s)
