"""PLAS and ATLAS: program-level and thread-level attained service (Agentix §4.2, algorithm 1).

A call enters the level that its program's service falls into: the quantum of a level is also the
width of its range. What the paper leaves open is said in docs/serving.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from metropolis.policy.base import Execution, QueuedRequest
from metropolis.policy.multilevel_queue import QUANTA_S, Call, Multilevel
from metropolis.types import MetropolisError

BETA = 32.0
"""A program's waiting over its service at which its calls are promoted."""


@dataclass(slots=True)
class ProcessEntry:
    """What is known of a running program."""

    service_s: float = 0.0
    """On engines, of its completed calls."""
    waited_s: float = 0.0
    threads: dict[int, Call] = field(default_factory=dict)
    """Its active calls, by the id of the request."""
    places: dict[int, int] = field(default_factory=dict)
    """By level, that of its first call there."""


class Plas(Multilevel):
    """A program's service is that of all its completed calls (equation 1).

    Within a level it is first come, first served, by calls, or `by_program`: then a program goes on
    where it was and finds its KV, as one that has just entered the level would stand behind all.
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

    def attained_s(self, program: str) -> tuple[float, float]:
        """As the process table has it."""
        entry = self._table.get(program)
        return (entry.service_s, entry.waited_s) if entry else (0.0, 0.0)

    def place(self, call: Call, level: int) -> int:
        """At the end of the level, or where its program first was in it."""
        place = super().place(call, level)
        if not self._by_program:
            return place
        return self._table[call.request.program].places.setdefault(level, place)

    def starves_s(self, call: Call) -> float:
        """When waiting is `beta` times the service, program and call taken together."""
        entry = self._table[call.request.program]
        if not call.level:
            return inf
        waited_s, service_s = entry.waited_s + call.waited_s, entry.service_s + call.service_s
        return call.since_s + self._beta * service_s - waited_s

    def arrived(self, request: QueuedRequest) -> None:
        """A thread of its program."""
        super().arrived(request)
        self._table[request.program].threads[request.id] = self._calls[request.id]

    def completed(self, execution: Execution) -> None:
        """Update the process table; its siblings starve earlier or later now."""
        call = self._leave(execution)
        entry = self._table[call.request.program]
        del entry.threads[call.request.id]
        self.update(entry, call)
        for sibling in entry.threads.values():
            if not sibling.is_running:
                self.expect(sibling)

    def cancelled(self, request: QueuedRequest) -> None:
        """What it has been served counts for nothing: nobody knows what comes after it."""
        super().cancelled(request)
        del self._table[request.program].threads[request.id]

    def program_ended(self, program: str) -> None:
        """Its entry is removed."""
        self._table.pop(program, None)

    def update(self, entry: ProcessEntry, call: Call) -> None:
        """Add a call that has been answered."""
        entry.service_s += call.service_s
        entry.waited_s += call.waited_s


class Atlas(Plas):
    """A program's service is that of its longest chain of calls (equation 2).

    One number a program, as in the paper: a call goes on from where its program was when it
    arrived. Waiting is kept along such chains as well.
    """

    def update(self, entry: ProcessEntry, call: Call) -> None:
        """The longest chain may be longer now."""
        entry.service_s = max(entry.service_s, call.attained_s + call.service_s)
        entry.waited_s = max(entry.waited_s, call.awaited_s + call.waited_s)
