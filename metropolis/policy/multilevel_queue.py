"""Multilevel feedback: queues of decreasing priority, each with a quantum of service."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, count, islice
from math import inf

from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.types import MetropolisError

QUANTA_S = (2.0, 8.0, 32.0, 128.0)
"""Quanta of all levels but the last, which is unbounded."""

_LEVEL_BITS, _ENTRY_BITS = 8, 40
"""Layout of a rank: the level in the high bits, the order of entry into it in the low bits."""
_RESOLUTION_S = 1e-6
_VOID_MAX = 1000
"""Maximum number of void items in `_due` beyond the number of calls."""
_RERANKED_MAX = 1000
"""Number of the latest changes of ranks that are kept."""


@dataclass(slots=True)
class Call:
    """A request from its arrival to its completion."""

    request: QueuedRequest
    level: int
    entered: int
    """Sequence number of its entry into the level, increasing over all levels."""
    quantum_s: float
    """The time that is left of the call's quantum, in seconds."""
    since_s: float
    """Start of the current run or wait; the times below are accounted up to it."""
    program_service_s: float
    """Service that the call's program had got when the call arrived, in seconds."""
    program_waited_s: float
    """Time that the call's program had waited when the call arrived, in seconds."""
    is_running: bool = False
    service_s: float = 0.0
    waited_s: float = 0.0


class Multilevel(Policy):
    """FIFO within a level; a call that spends its quantum moves to the end of the next level.

    Service is time on an engine. Raises MetropolisError when a quantum is not positive.
    """

    preempts = True
    rank_bits = _LEVEL_BITS + _ENTRY_BITS

    def __init__(self, quanta_s: Sequence[float] = QUANTA_S) -> None:
        fits = 0 < len(quanta_s) < 1 << _LEVEL_BITS
        if not fits or not all(0 < quantum_s < inf for quantum_s in quanta_s):
            raise MetropolisError(
                f"quanta_s is {quanta_s}; it should be 1 to {(1 << _LEVEL_BITS) - 1} numbers of "
                "seconds above 0"
            )
        self._quanta_s = [*quanta_s, inf]
        self._lows_s = [0.0, *accumulate(quanta_s)]
        """Level -> the least service, in seconds, of a call that enters at this level."""
        self._calls: dict[int, Call] = {}
        self._entries = count()
        self._due: list[tuple[float, int, int]] = []
        """A heap: when each call changes its level next, number, request id. It holds no calls:
        void items would keep their prompts in memory."""
        self._dues = count()
        self._expected: dict[int, int] = {}
        """The valid item of `_due` by request id; older ones are void."""
        self._reranked: deque[int] = deque(maxlen=_RERANKED_MAX)
        """Ids of the calls that changed their level, one for each change of a version."""

    @abstractmethod
    def program_times_s(self, program: str) -> tuple[float, float]:
        """Service and waiting that count against a new request of `program`."""

    @abstractmethod
    def promotion_s(self, call: Call) -> float:
        """When the waiting `call` is promoted to the first level; infinite if never."""

    def rank(self, request: QueuedRequest) -> int:
        """The call's level, then its order of entry."""
        call = self._calls.get(request.id)
        if call is None:
            return self._level(self.program_times_s(request.program)[0]) << _ENTRY_BITS
        return call.level << _ENTRY_BITS | call.entered

    def reranked(self, since: int) -> Collection[int] | None:
        """See Policy."""
        changes = self.version + self.running_version - since
        if changes > len(self._reranked):
            return None
        return set(islice(reversed(self._reranked), changes))

    @property
    def due_s(self) -> float:
        """When the next quantum is spent, or the next call promoted."""
        while self._due:
            due_s, number, id_ = self._due[0]
            if self._expected.get(id_) == number:
                return due_s
            heappop(self._due)
        return inf

    def arrived(self, request: QueuedRequest) -> None:
        """Enter the level that its program's attained service falls into."""
        service_s, waited_s = self.program_times_s(request.program)
        call = Call(request, 0, 0, 0.0, request.arrived_s, service_s, waited_s)
        self._calls[request.id] = call
        self._enter(call, self._level(service_s))
        self.expect(call)

    def started(self, request: QueuedRequest, now_s: float) -> None:
        """Begin to use the quantum of the request's call."""
        self._switch(request, now_s, is_running=True)

    def preempted(self, request: QueuedRequest, now_s: float) -> None:
        """Stop using the quantum of the request's call, which keeps its position."""
        self._switch(request, now_s, is_running=False)

    def passed(self, now_s: float) -> None:
        """Demote calls that spent their quantum; promote calls that waited too long."""
        while (due_s := self.due_s) <= now_s:
            call = self._calls[heappop(self._due)[2]]
            account(call, due_s)
            if call.is_running:
                self._enter(call, call.level + 1)
                self.running_version += 1
            else:
                self._enter(call, 0)
                call.waited_s = call.service_s = 0.0
                self.version += 1
            self._reranked.append(call.request.id)
            self.expect(call)

    def completed(self, served: ServedRequest) -> None:
        """Drop the call."""
        self._leave(served)

    def cancelled(self, request: QueuedRequest) -> None:
        """Drop the call."""
        del self._calls[request.id], self._expected[request.id]

    def _leave(self, served: ServedRequest) -> Call:
        """Remove and return the completed call, its times accounted up to the end."""
        call = self._calls.pop(served.request.id)
        del self._expected[served.request.id]
        account(call, served.completed_s)
        return call

    def expect(self, call: Call) -> None:
        """Schedule when `call` is demoted or promoted next."""
        due_s = call.since_s + call.quantum_s if call.is_running else self.promotion_s(call)
        number = self._expected[call.request.id] = next(self._dues)
        if due_s < inf:
            heappush(self._due, (max(due_s, call.since_s), number, call.request.id))
        if len(self._due) > 2 * len(self._expected) + _VOID_MAX:
            expected = set(self._expected.values())
            self._due = [item for item in self._due if item[1] in expected]
            heapify(self._due)

    def _switch(self, request: QueuedRequest, now_s: float, is_running: bool) -> None:
        call = self._calls[request.id]
        account(call, now_s)
        call.is_running = is_running
        self.expect(call)

    def position(self, call: Call, level: int) -> int:  # noqa: ARG002
        """The position at which `call` enters `level`: its end."""
        return next(self._entries)

    def _enter(self, call: Call, level: int) -> None:
        call.level, call.entered = level, self.position(call, level)
        call.quantum_s = self._quanta_s[level]

    def _level(self, service_s: float) -> int:
        return bisect_right(self._lows_s, service_s + _RESOLUTION_S) - 1


def account(call: Call, now_s: float) -> None:
    """Add the current run or wait up to now to the times of `call`."""
    passed_s = max(0.0, now_s - call.since_s)
    call.since_s = now_s
    if call.is_running:
        call.service_s += passed_s
        call.quantum_s -= passed_s
    else:
        call.waited_s += passed_s
