"""What follows from a timeline: the floor, the front, sums over calls, and who unblocked whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metropolis.timeline.columns import NONE, Float64, Timeline

Int64 = npt.NDArray[np.int64]


class Progress(NamedTuple):
    """(n,) columns: from each time on, the smallest and the greatest step that agents are at.

    The time of the first row is that of the first dispatch.
    """

    time_s: Float64
    floor: Int64
    front: Int64


def progress_of(timeline: Timeline) -> Progress:
    """The floor and the front over time; no rows if there are no agent-steps."""
    rows = timeline.executions
    if not len(rows):
        return Progress(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
    steps, row = np.unique(rows.step, return_inverse=True)
    committed_s = np.full((len(steps), timeline.meta.agents), np.inf)
    is_committed = ~np.isnan(rows.committed_s)
    committed_s[row[is_committed], rows.agent[is_committed]] = rows.committed_s[is_committed]
    # A step that is missing was committed before later ones of its agent.
    passed_s = np.minimum.accumulate(committed_s[::-1])[::-1]
    floor_s, front_s = passed_s.max(axis=1), passed_s.min(axis=1)
    changes = np.concatenate([[np.nanmin(rows.dispatched_s)], floor_s, front_s])
    times = np.unique(changes[np.isfinite(changes)])
    step_after = np.append(steps[0], steps + 1).astype(np.int64)
    """By the number of recorded steps that have been passed."""
    floor, front = (step_after[np.searchsorted(of, times, "right")] for of in (floor_s, front_s))
    return Progress(times, floor, front)


def sum_over_time(begins: Int64, ends: Int64, amounts: Int64) -> tuple[Int64, Int64]:
    """Times at which the sum of `amounts` over the intervals [begin, end) changes; the sums."""
    times, which = np.unique(np.concatenate([begins, ends]), return_inverse=True)
    changes = np.zeros(len(times), np.int64)
    np.add.at(changes, which, np.concatenate([amounts, -amounts]))
    changed = changes != 0
    return times[changed], np.cumsum(changes)[changed]


def waits(timeline: Timeline) -> tuple[Int64, Int64]:
    """(n,) each: rows of executions that waited, and the rows of the commits that ended the wait.

    That commit is the blocker's last one before the dispatch, and of an earlier step: an execution
    waits only for agents at earlier steps. If it is not in the timeline, the wait is left out.
    """
    rows = timeline.executions
    committed = np.flatnonzero(~np.isnan(rows.committed_s))
    committed = committed[np.lexsort((rows.step[committed], rows.agent[committed]))]
    bounds = np.searchsorted(rows.agent[committed], np.arange(timeline.meta.agents + 1))
    waiting: list[Int64] = []
    blockers: list[Int64] = []
    for blocker in np.unique(rows.blocked_by[rows.blocked_by != NONE]).tolist():
        blocked = np.flatnonzero(rows.blocked_by == blocker)
        own = committed[bounds[blocker] : bounds[blocker + 1]]
        before = np.minimum(
            np.searchsorted(rows.committed_s[own], rows.dispatched_s[blocked], "right"),
            np.searchsorted(rows.step[own], rows.step[blocked]),
        )
        blocked, last = blocked[before > 0], own[before[before > 0] - 1]
        # a wall clock that was set back breaks the order of commits
        in_time = rows.committed_s[last] <= rows.dispatched_s[blocked]
        waiting.append(blocked[in_time])
        blockers.append(last[in_time])
    none = [np.zeros(0, np.int64)]
    return np.concatenate(none + waiting), np.concatenate(none + blockers)
