"""Proximity and sleep of agents, derived from movement alone."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metropolis.rules.metrics import metric_named
from metropolis.trace.mining import interactions
from metropolis.trace.schema import Int64, Trace

Bools = npt.NDArray[np.bool_]

NIGHT_END_H, EVENING_H, WINDOW_H = 5, 21, 7
"""An agent sleeps while it stands still, if that includes a time before 5 h, lasts from after 21 h
to the end of the recording, or starts with a recording that begins before 7 h."""
EVENING_STEPS = 90


class Pairs(NamedTuple):
    """Pairs a < b that perceive each other, sorted by (step, a, b)."""

    step: Int64
    a: Int64
    b: Int64


@dataclass(frozen=True)
class Life:
    """Movement and sleep of all agents; arrays are (steps, agents)."""

    moving: Bools
    """Whether the agent leaves its tile in this step."""
    walk_start: Bools
    arrival: Bools
    """The first step after a walk."""
    asleep: Bools
    hour: Int64
    """(steps,): hours since the midnight before step 0, rounded down."""


def life(trace: Trace) -> Life:
    """The walks and sleep of every agent."""
    moving = np.zeros((trace.steps, trace.agents), np.bool_)
    moving[:-1] = (np.diff(trace.positions, axis=0) != 0).any(axis=2)
    before = np.zeros_like(moving)
    before[1:] = moving[:-1]
    hour = np.floor(
        trace.hour_of_step(0) + np.arange(trace.steps) * trace.meta.step_s / 3600 + 1e-9
    ).astype(np.int64)
    asleep = np.zeros_like(moving)
    for agent in range(trace.agents):
        edges = np.flatnonzero(np.diff(moving[:, agent], prepend=True, append=True))
        for first, last in edges.reshape(-1, 2):
            asleep[first:last, agent] = _sleeps(first, last, hour)
    return Life(moving, moving & ~before, ~moving & before, asleep, hour)


def _sleeps(first: int, last: int, hour: Int64) -> bool:
    """Whether standing still over the steps [first, last) means sleep."""
    of_day = hour[first:last] % 24
    return bool(
        of_day.min() < NIGHT_END_H
        or (first == 0 and of_day[0] < WINDOW_H)
        or (last == len(hour) and of_day[0] >= EVENING_H and last - first >= EVENING_STEPS)
    )


def pairs_in_range(trace: Trace) -> Pairs:
    """Pairs that perceive each other, restricted to the same arena if there is a map."""
    meta = trace.meta
    metric = metric_named(meta.metric, meta.map, meta.max_velocity, meta.graph)
    graph = interactions(trace, metric, meta.perception_radius)
    flat = np.repeat(np.arange(len(graph.offsets) - 1), np.diff(graph.offsets))
    step, a = np.divmod(flat, trace.agents)
    b = graph.partners.astype(np.int64)
    once = a < b
    step, a, b = step[once], a[once], b[once]
    if meta.map is not None:
        x, y = np.moveaxis(np.floor(trace.positions + 0.5).astype(np.int64), 2, 0)
        arena = meta.map.arenas[y, x]
        same = arena[step, a] == arena[step, b]
        step, a, b = step[same], a[same], b[same]
    return Pairs(step, a, b)


def of_the_awake(pairs: Pairs, living: Life) -> Pairs:
    """The pairs of which neither agent sleeps at the step."""
    step, a, b = pairs
    awake = ~(living.asleep[step, a] | living.asleep[step, b])
    return Pairs(step[awake], a[awake], b[awake])


class Meetings(NamedTuple):
    """Every step of every uninterrupted meeting, sorted by (a, b, step)."""

    step: Int64
    a: Int64
    b: Int64
    first: Int64
    """The first step of the meeting."""
    last: Int64
    """The step after the last one of the meeting."""


def meetings(pairs: Pairs) -> Meetings:
    """The pairs with the beginning and end of their meeting."""
    order = np.lexsort((pairs.step, pairs.b, pairs.a))
    step, a, b = (column[order] for column in pairs)
    new = np.ones(len(step), np.bool_)
    new[1:] = (np.diff(a) != 0) | (np.diff(b) != 0) | (np.diff(step) != 1)
    starts = np.flatnonzero(new)
    lengths = np.diff(starts, append=len(step))
    first = np.repeat(step[starts], lengths)
    return Meetings(step, a, b, first, first + np.repeat(lengths, lengths))
