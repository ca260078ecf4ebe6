"""Where the slices of a trace stand: in rows in which they do not overlap, one after another.

Agent-steps without calls take no simulated time, so many begin and end at one instant. Readers of
traces nest such slices into each other, and draw no arrow between events of one instant. Each slice
therefore takes at least a microsecond here, and begins after those that it follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from metropolis.timeline.columns import Float64, Timeline
from metropolis.timeline.derived import Int64, waits

LEAST_US = 1
"""The shortest duration of a slice, in microseconds."""


def rows_without_overlap(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the row of each interval: the first row, from 0, in which no interval overlaps it.

    `begins` must ascend.
    """
    rows: list[int] = []
    busy: list[tuple[int, int]] = []
    """A heap of (end, row) of the rows with an open interval, the earliest end first."""
    free: list[int] = []
    for begin, end in zip(begins, ends, strict=True):
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        row = heappop(free) if free else len(busy)
        heappush(busy, (end, row))
        rows.append(row)
    return rows


def predecessors(rows: Sequence[int]) -> dict[int, int]:
    """Index of an interval -> index of the interval before it in its row."""
    last: dict[int, int] = {}
    found = {}
    for index, row in enumerate(rows):
        if row in last:
            found[index] = last[row]
        last[row] = index
    return found


def set_apart(
    begins: list[int], ends: list[int], order: Sequence[int], *follows: Mapping[int, int]
) -> None:
    """Let each interval take at least LEAST_US, and not begin before the ends of its predecessors.

    `begins` and `ends`, in microseconds, are changed in place. Each of `follows` maps the index of
    an interval to the index of a predecessor, which is ignored unless it is earlier in `order`.
    """
    placed = bytearray(len(begins))
    for index in order:
        for before in follows:
            other = before.get(index)
            if other is not None and placed[other]:
                begins[index] = max(begins[index], ends[other])
        ends[index] = max(ends[index], begins[index] + LEAST_US)
        placed[index] = True


@dataclass(frozen=True)
class Layout:
    """Lists with a value per slice, in the order in which a thread's slices are written."""

    source: list[int]
    """The row of the slice's agent-step or call in the timeline."""
    row: list[int]
    """The row of the slice on the page, from 0, among those of its agent or instance."""
    begin_us: list[int]
    end_us: list[int]


def call_layout(calls: Int64, begin_us: Int64, end_us: Int64) -> Layout:
    """The layout of the calls of one agent or instance.

    `calls` are rows of the timeline; all three arrays have the shape (calls,).
    """
    order = np.argsort(begin_us, kind="stable")
    begins, ends = begin_us[order].tolist(), end_us[order].tolist()
    rows = rows_without_overlap(begins, ends)
    set_apart(begins, ends, range(len(rows)), predecessors(rows))
    return Layout(calls[order].tolist(), rows, begins, ends)


@dataclass(frozen=True)
class StepLayout(Layout):
    """The layout of all agent-steps, agent by agent."""

    bounds: list[int]
    """(agents + 1,): agent a has the slices [bounds[a], bounds[a + 1])."""
    blocker: dict[int, int]
    """Index of a slice -> index of the slice whose commit it waited for."""


def step_layout(timeline: Timeline, end_s: float) -> StepLayout:
    """The layout of the agent-steps of `timeline`; those without an end end at `end_s`."""
    rows = timeline.executions
    order = np.lexsort((rows.step, rows.dispatched_s, rows.agent))
    bounds = np.searchsorted(rows.agent[order], np.arange(timeline.meta.agents + 1)).tolist()
    begin_us = microseconds(rows.dispatched_s[order])
    begins = begin_us.tolist()
    ends = ends_us(begin_us, rows.committed_s[order], end_s).tolist()
    layers: list[int] = []
    before: dict[int, int] = {}
    for first, last in pairwise(bounds):
        own = rows_without_overlap(begins[first:last], ends[first:last])
        before |= {first + one: first + other for one, other in predecessors(own).items()}
        layers += own
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    waiting, blockers = (position[one].tolist() for one in waits(timeline))
    blocker = dict(zip(waiting, blockers, strict=True))
    by_time = np.lexsort((rows.step[order], rows.dispatched_s[order])).tolist()
    set_apart(begins, ends, by_time, before, blocker)
    blocker = {one: other for one, other in blocker.items() if ends[other] <= begins[one]}
    return StepLayout(order.tolist(), layers, begins, ends, bounds, blocker)


def microseconds(times_s: Float64) -> Int64:
    """Return seconds as whole microseconds."""
    return np.rint(times_s * 1e6).astype(np.int64)


def ends_us(begin_us: Int64, times_s: Float64, end_s: float) -> Int64:
    """Return `times_s` in whole microseconds, with `end_s` in place of NaN.

    An end before its begin, which a wall clock that was set back can cause, becomes the begin.
    """
    return np.maximum(begin_us, microseconds(np.where(np.isnan(times_s), end_s, times_s)))
