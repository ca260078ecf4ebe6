"""The timeline of a live run, from what its executor dispatches and reads from the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from math import isnan, nan

import numpy as np
import numpy.typing as npt

from metropolis.controller.base import NO_AGENT
from metropolis.llm.call_log import CallRecord
from metropolis.store.base import Acknowledged
from metropolis.store.execution import Execution
from metropolis.timeline.columns import Timeline
from metropolis.timeline.writer import Began, TimelineWriter
from metropolis.types import AgentId, Dispatch, Step

Edges = npt.NDArray[np.int32]


class RecordedTimeline:
    """Writes the timeline of a live run to `writer`; `clock` gives the time of the run.

    It is also the Observer of agents that run ahead.
    """

    def __init__(
        self,
        writer: TimelineWriter,
        clock: Callable[[], float],
        earlier: Timeline | None = None,
        since: Step = 0,
    ) -> None:
        """`earlier` is that of earlier processes; its commits from the step `since` on count."""
        self._writer, self._clock = writer, clock
        self._earlier: dict[tuple[Step, AgentId], tuple[float, float]] = {}
        """(step, agent) -> times of the dispatch and the commit."""
        if earlier is not None:
            rows = earlier.executions
            kept = rows.step >= since
            columns = rows.step, rows.agent, rows.dispatched_s, rows.committed_s
            for step, agent, *times in zip(*(of[kept].tolist() for of in columns), strict=True):
                self._earlier[step, agent] = times[0], times[1]
        self._now_s, self._wall_s = clock(), time.time()
        """Times of the latest commits, and of the dispatches that follow from them."""
        self._committed: dict[AgentId, tuple[Step, float]] = {}
        """Agent -> step and time of its last commit."""
        self._began: dict[tuple[Step, AgentId], Began] = {}
        self._requests: dict[tuple[Step, AgentId], Sequence[CallRecord]] = {}
        """(step, agent) -> the requests sent for this step of an agent that ran ahead."""

    def restore(self, execution: Execution) -> None:
        """Record a commit that an earlier process may not have recorded, because it was killed.

        The exact time of the commit is unknown: it is assumed to follow the last of its calls.
        """
        step, agents = execution.step, execution.agents
        began_s, committed_s = self._earlier.get((step, agents[0]), (nan, nan))
        if not isnan(committed_s):
            return
        calls = [call for of in execution.calls.values() for call in of]
        if isnan(began_s):
            began_s = min([call.sent for call in calls], default=self._now_s)
        ended_s = max([began_s, *(call.completed or began_s for call in calls)])
        self._writer.dispatched(step, agents, began_s, None)
        self._writer.committed(step, agents, ended_s, None)
        self._write_calls(execution)

    def dispatched(self, clusters: Iterable[Dispatch], blocked_by: Edges | None = None) -> None:
        """`clusters` may run; `blocked_by`: (agents,), as of the controller before."""
        now_s = self._now_s
        for cluster in clusters:
            blockers = {}
            if blocked_by is not None:
                waited = [a for a in cluster.agents if self._waited(a)]
                blockers = _blockers(cluster.agents, waited, blocked_by)
            self._writer.dispatched(cluster.step, cluster.agents, now_s, self._wall_s, blockers)

    def _waited(self, agent: AgentId) -> bool:
        """Whether time has passed since its last commit."""
        return agent in self._committed and self._committed[agent][1] < self._now_s

    def waiting(self, edges: Mapping[AgentId, AgentId | None]) -> None:
        """Agents now wait for others; None: an agent waits for none: it runs or has finished."""
        for agent, blocker in edges.items():
            if blocker is not None and agent in self._committed:
                self._writer.waiting(self._committed[agent][0] + 1, agent, blocker)

    def committed(self, acknowledged: Sequence[Acknowledged]) -> None:
        """Record commits, in the order in which they were acknowledged."""
        self._now_s, self._wall_s = now_s, wall_s = self._clock(), time.time()
        for one in acknowledged:
            execution = one.execution
            step, agents = execution.step, execution.agents
            began = {a: self._began.pop((step, a)) for a in agents if (step, a) in self._began}
            self._writer.committed(step, agents, now_s, wall_s, began)
            self._committed |= dict.fromkeys(agents, (step, now_s))
            self._write_calls(execution)
            if one.continues:  # the cluster's worker has begun the next step
                self._writer.dispatched(step + 1, agents, now_s, wall_s)

    def _write_calls(self, execution: Execution) -> None:
        step = execution.step
        agents = execution.agents if self._requests else execution.calls
        for agent in agents:
            calls = execution.calls.get(agent, ())
            if requests := self._requests.pop((step, agent), ()):
                calls, wasted = _matched(calls, requests)
                for request in wasted:
                    if request.completed is None:  # the call is cancelled now
                        request.completed = self._now_s
                self._writer.called(step, agent, wasted, count(-1, -1), wasted=True)
            self._writer.called(step, agent, calls, count())

    def began(self, step: Step, agent: AgentId) -> None:
        """See Observer."""
        before = self._began.get((step, agent))
        wasted = 0 if before is None else before.wasted + 1
        self._began[step, agent] = Began(self._clock(), time.time(), wasted)

    def requested(self, step: Step, agent: AgentId, requests: Sequence[CallRecord]) -> None:
        """See Observer."""
        if requests:
            self._requests[step, agent] = requests

    def advance(self) -> None:
        """See TimelineWriter."""
        self._writer.advance()


def _matched(
    calls: Sequence[CallRecord], requests: Sequence[CallRecord]
) -> tuple[list[CallRecord], list[CallRecord]]:
    """The `calls`, each at the time of the request that it got its answer from, and other requests.

    An answer may come from a request of an earlier execution, which was wrong.
    """
    left, matched = [*requests], []
    for call in calls:
        for request in left:
            if _content_of(request) == _content_of(call):
                left.remove(request)
                is_earlier = request.completed is not None and request.completed <= call.sent
                matched.append(request if is_earlier else call)
                break
        else:  # known since an earlier start of the run
            matched.append(call)
    return matched, left


def _content_of(call: CallRecord) -> tuple[str, str, int, int, bool]:
    return call.function, call.model, call.prompt_tokens, call.output_tokens, call.failed


def _blockers(
    cluster: Sequence[AgentId], waited: Iterable[AgentId], blocked_by: Edges
) -> dict[AgentId, AgentId]:
    """Whom each of the members of `cluster` that `waited` waited for before the dispatch.

    A member that was not blocked itself shows one that was (see `Controller.blocked_by`), and
    waited for the same agent.
    """
    found = {}
    for agent in waited:
        blocker = int(blocked_by[agent])
        while blocker in cluster and blocked_by[blocker] != NO_AGENT:
            blocker = int(blocked_by[blocker])
        if blocker >= 0:
            found[agent] = blocker
    return found
