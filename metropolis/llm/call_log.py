"""The calls of a cluster's step and their dependencies: the `parents` of a trace.

Agents that proceed wait for no other agent; calls of `World.resolve` wait for the whole cluster.
Within each of these phases tasks are tracked (see `metropolis.llm.followed_tasks`). A call waits
for

1. the earlier calls of its task, and all that the creator of the task had waited for;
2. the calls of the tasks that its task has waited for: it has awaited them, added a callback as
   `asyncio.gather` does, or left their group; or they are in no group, are done, and it has created
   them;
3. if it is sent later than the last of these ended: all calls of the phase that ended meanwhile.
   Its task waited for something else, for instance a lock, which does not show who held it.

Later means: at a later instant, see `CallLog`. Untracked tasks count as one task, as do the threads
of a synchronous agent; calls that end while these compute do not count as waited for. A task that
is given a context counts as the task whose context it is.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import Any

from metropolis.llm.base import Completion
from metropolis.types import AgentId

CallId = tuple[AgentId, int]
"""A call of a cluster's step: its agent, and its number among that agent's calls, from 0."""


Group = weakref.ref[asyncio.TaskGroup]


class _Served:
    """Keeps the service of a call out of its fields, which are stored; None: not known."""

    __slots__ = ("instance", "started")
    instance: int | None
    started: float | None

    def note_service(self, instance: int | None, started: float | None) -> None:
        """Set the instance that served the call, and when it started there."""
        self.instance, self.started = instance, started


@dataclass(slots=True)
class CallRecord(_Served):
    """One call of an agent-step, as stored in a trace.

    `parents` are the calls of the cluster's step that it waited for, without ancestors of others
    among them. Times are on the log's clock; `sent` is when the agent made the call. `prompt` and
    `completion` are None unless texts are kept; a call that `failed`, or whose stream was closed
    before its end, has no completion and no tokens. `instance` and `started`, its start there after
    queueing, are known in the process of simulated instances or of a gateway only.
    """

    function: str
    model: str
    parents: tuple[CallId, ...]
    sent: float
    completed: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    prompt: str | None = None
    completion: str | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        self.note_service(None, None)

    def end(self, completed: float, completion: Completion | None) -> None:
        """Record its end at `completed`; without `completion` it has failed."""
        self.completed = completed
        if completion is None:
            self.failed = True
            return
        self.prompt_tokens = completion.prompt_tokens
        self.output_tokens = completion.output_tokens
        if (service := completion.service) is not None:
            started = max(self.sent, completed - service.duration_s)
            self.note_service(service.instance, started)


class CallLog:
    """The calls of a cluster's step, by agent, in the order of sending.

    `clock` gives the times of sending and completion. `instant` is a number that increases whenever
    a task may have waited. None takes `clock`, which is right if that is virtual; a wall clock also
    advances while ready tasks run: use `metropolis.workers.event_loop.idles` with it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        instant: Callable[[], float] | None = None,
    ) -> None:
        self.clock = clock
        self.instant = clock if instant is None else instant
        self.calls: dict[AgentId, list[CallRecord]] = {}
        self.is_abandoned = False
        """Whether the execution was discarded: its remaining tasks end without a message."""
        self._ids: list[CallId] = []
        self._ancestors: list[int] = []
        """Bit set per call: the calls that it waited for, directly or not."""
        self._ended: list[int] = []
        self._latest: tuple[object, tuple[frozenset[int], int]] = None, (frozenset(), 0)
        """The argument and the result of `latest`: the calls of a wave wait for the same ones."""
        self._parents: tuple[object, tuple[CallId, ...]] = None, ()
        """What the last call waited for, as indices and as ids."""

    def joined(self, others: Iterable[CallLog]) -> CallLog:
        """A log that continues this one and `others`, of other agents in the same step."""
        log = CallLog(self.clock, self.instant)
        for part in (self, *others):
            first = len(log._ids)
            log.calls |= {agent: list(calls) for agent, calls in part.calls.items()}
            log._ids += part._ids
            log._ancestors += [ancestors << first for ancestors in part._ancestors]
            log._ended += [first + index for index in part._ended]
        return log

    def strand(self) -> Strand:
        """The strand of the first task of an agent, which waits for no other agent."""
        return Strand(self, frozenset(), [])

    def resolving(self) -> Strand:
        """The strand of the first task of `World.resolve`, which waits for all ended calls."""
        return Strand(self, self.latest(frozenset(self._ended))[0], [])

    def latest(self, calls: frozenset[int]) -> tuple[frozenset[int], int]:
        """The `calls` that are not ancestors of others; the bit set of ancestors and calls."""
        if self._latest[0] is not calls:
            ancestors = 0
            for index in calls:
                ancestors |= self._ancestors[index]
            latest = frozenset(index for index in calls if not ancestors >> index & 1)
            if len(latest) == len(calls):
                latest = calls
            for index in latest:
                ancestors |= 1 << index
            self._latest = calls, (latest, ancestors)
        return self._latest[1]

    def last_function(self, calls: Iterable[int]) -> str | None:
        """The function of the call that ended last; None without calls.

        A stream that goes on counts as the last. Ties are broken by agent and number.
        """

        def end_of(of: CallId) -> tuple[float, CallId]:
            completed = self.calls[of[0]][of[1]].completed
            return inf if completed is None else completed, of

        last = max((self._ids[index] for index in calls), key=end_of, default=None)
        return None if last is None else self.calls[last[0]][last[1]].function

    def add(
        self,
        agent: AgentId,
        parents: frozenset[int],
        ancestors: int,
        function: str,
        model: str,
        prompt: str | None,
    ) -> int:
        """Record that a call is sent; returns its index."""
        own_calls = self.calls.setdefault(agent, [])
        if self._parents[0] is not parents:
            self._parents = parents, tuple(sorted(self._ids[parent] for parent in parents))
        self._ids.append((agent, len(own_calls)))
        self._ancestors.append(ancestors)
        own_calls.append(CallRecord(function, model, self._parents[1], self.clock(), prompt=prompt))
        return len(self._ids) - 1

    def end(self, index: int, completion: Completion | None) -> CallRecord:
        """Record the end of a call; without `completion` it has failed."""
        self._ended.append(index)
        agent, number = self._ids[index]
        record = self.calls[agent][number]
        record.end(self.clock(), completion)
        return record


@dataclass(slots=True)
class _Ended:
    """What tasks that are done have waited for."""

    calls: set[int] = field(default_factory=set)
    last: float = -inf
    """The instant of the last end."""


class Strand:
    """The sequential history of one task in one phase of a cluster's step."""

    def __init__(
        self,
        log: CallLog,
        waited: frozenset[int],
        ended: list[tuple[float, int]],
        creator: Strand | None = None,
    ) -> None:
        self.log, self._creator = log, creator
        self._waited = waited
        """The calls that the next one waits for, possibly with their ancestors."""
        self._ended = ended
        """(instant, call) of each end in the phase, in order; shared by all its strands."""
        self._last_end: float = -inf if creator is None else creator._last_end
        """The instant of the latest end of a call in `_waited`, or of the task's start."""
        self._open: dict[Strand, asyncio.Task[Any]] = {}
        """Strands of the tasks that the task has created, until they are done."""
        self._groups: dict[Group, _Ended] = {}
        """Open task group of this task -> what its tasks that are done have waited for."""
        self._group: tuple[Strand, Group] | None = None
        """The group that the task is in, and the strand of the task whose group it is."""
        self._seen = 0
        """How many calls had ended when `_open` was last checked."""
        self._is_done = False

    @property
    def upstream(self) -> str | None:
        """The function of the call that ended last among those that the next call waits for."""
        self.catch_up()
        self._waited, _ = self.log.latest(self._waited)
        return self.log.last_function(self._waited)

    def sent(self, agent: AgentId, function: str, model: str, prompt: str | None) -> int:
        """Record that the task sends a call of `agent`; returns its index in the log."""
        self.catch_up()
        self._waited, ancestors = self.log.latest(self._waited)
        return self.log.add(agent, self._waited, ancestors, function, model, prompt)

    def record_answer(self, index: int) -> None:
        """Record that the call has ended, or that the task has the first piece of its answer."""
        self._last_end = self.log.instant()
        self._ended.append((self._last_end, index))
        self._waited |= {index}

    def fork(self) -> Strand:
        """The strand of a task that this one creates."""
        self.catch_up()
        self._waited, _ = self.log.latest(self._waited)  # once, not in each task of a wave
        return Strand(self.log, self._waited, self._ended, self)

    def follow(self, strand: Strand, task: asyncio.Task[Any]) -> None:
        """Record that the fork `strand` is that of `task`."""
        self._open[strand] = task

    def enter_group(self, group: Group, owner: Strand | None) -> None:
        """Record that the task is in a group of the task of `owner`; None: of the first task."""
        if owner is None:
            owner = self
            while owner._creator is not None:
                owner = owner._creator
        if owner.log is self.log:
            self._group = owner, group

    def end(self) -> None:
        """Record that the task is done; in no group, its creator may have waited for it."""
        if self._is_done:
            return
        self._join_ended()
        self._is_done = True
        creator = self._creator
        if creator is not None:
            creator._open.pop(self, None)
        if self._group is not None:
            owner, group = self._group
            ended = owner._groups.setdefault(group, _Ended())
            ended.calls |= self._waited
            ended.last = max(ended.last, self._last_end)
            return
        while creator is not None and creator._is_done:
            creator = creator._creator
        if creator is not None:
            creator.join(self)

    def join(self, other: Strand) -> None:
        """Record that the task has waited for that of `other`, which is done."""
        if other.log is self.log:
            self._wait(other._waited, other._last_end)

    def _wait(self, calls: AbstractSet[int], last_end: float) -> None:
        self._waited |= calls
        self._last_end = max(self._last_end, last_end)

    def _join_ended(self) -> None:
        """Join what has ended: tasks whose callbacks have not run yet, and groups."""
        if len(self._ended) > self._seen:  # otherwise nothing is new in the others
            self._seen = len(self._ended)
            for strand, task in list(self._open.items()):
                if asyncio.Task.done(task):
                    strand.end()
        for reference in list(self._groups):
            # A group of a later Python may lack the attribute; then its tasks count from their end.
            if (group := reference()) is None or getattr(group, "_exiting", True):
                ended = self._groups.pop(reference)
                self._wait(ended.calls, ended.last)

    def catch_up(self) -> None:
        """Continue now: if later than `_last_end`, the task has waited for something else."""
        self._join_ended()
        for ended, index in reversed(self._ended):
            if ended <= self._last_end:
                break
            self._waited |= {index}
        self._last_end = self.log.instant()

    def has_computed(self) -> None:
        """Continue now: since `_last_end`, the task has waited only for its own thread."""
        self._last_end = self.log.instant()


_current: ContextVar[Strand | None] = ContextVar("strand", default=None)


def current_strand() -> Strand | None:
    """The strand of the running task, if it is tracked."""
    return _current.get()


class in_strand:  # noqa: N801 -- a context manager, as those of contextlib
    """Run the body in `strand`; None: untracked."""

    __slots__ = "_strand", "_token"

    def __init__(self, strand: Strand | None) -> None:
        self._strand = strand

    def __enter__(self) -> None:
        self._token = _current.set(self._strand)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
