"""The timeline of a live run, from what its executor dispatches and reads from the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from metropolis.controller.base import NO_AGENT
from metropolis.store.base import Acknowledged
from metropolis.timeline.writer import TimelineWriter
from metropolis.types import AgentId, Dispatch

Edges = npt.NDArray[np.int32]


class RecordedTimeline:
    """Writes to `writer`; `clock` gives the time of the run."""

    def __init__(self, writer: TimelineWriter, clock: Callable[[], float]) -> None:
        self._writer, self._clock = writer, clock

    def dispatched(self, clusters: Iterable[Dispatch], blocked_by: Edges | None = None) -> None:
        """`clusters` may run; `blocked_by`: (agents,), as of the controller before."""
        now_s, wall_s = self._clock(), time.time()
        for cluster in clusters:
            blockers = {} if blocked_by is None else _blockers(cluster.agents, blocked_by)
            self._writer.dispatched(cluster.step, cluster.agents, now_s, wall_s, blockers)

    def committed(self, acknowledged: Sequence[Acknowledged]) -> None:
        """Commits, in their order."""
        now_s, wall_s = self._clock(), time.time()
        for one in acknowledged:
            execution = one.execution
            step, agents = execution.step, execution.agents
            self._writer.committed(step, agents, now_s, wall_s)
            for agent, calls in execution.calls.items():
                self._writer.called(step, agent, calls)
            if one.continues:  # its worker has begun the next step
                self._writer.dispatched(step + 1, agents, now_s, wall_s)

    def advance(self) -> None:
        """See TimelineWriter."""
        self._writer.advance()


def _blockers(cluster: Sequence[AgentId], blocked_by: Edges) -> dict[AgentId, AgentId]:
    """Whom each member of `cluster` waited for before it was dispatched.

    A member that was not blocked itself shows one that was (see `Controller.blocked_by`), and
    waited for the same agent.
    """
    found = {}
    for agent in cluster:
        blocker = int(blocked_by[agent])
        while blocker in cluster and blocked_by[blocker] != NO_AGENT:
            blocker = int(blocked_by[blocker])
        if blocker >= 0:
            found[agent] = blocker
    return found
