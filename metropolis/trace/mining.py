"""Mining a trace for its true dependencies: mutual perception, and the longest chain of calls.

AI Metropolis §2.2 (1.85 agents per agent-step) and §4.2 (the settings *oracle* and *critical*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import metropolis._core as _core
from metropolis.rules.metrics import Hops, Metric
from metropolis.rules.native import core_metric
from metropolis.trace.order import parents_first, ranges
from metropolis.trace.schema import Int32, Int64, Trace

Float64 = npt.NDArray[np.float64]

_POINTS_AT_ONCE = 200_000


@dataclass(frozen=True)
class InteractionGraph:
    """The agents in each agent's observation, at every step: the mined dependencies of `oracle`.

    The partners of agent a at step s, without a, are `partners[offsets[i]:offsets[i + 1]]` with
    i = s * agents + a. Partners synchronise before and after the step.
    """

    offsets: Int64
    """(steps * agents + 1,)"""
    partners: Int32

    @property
    def dependencies_per_agent_step(self) -> float:
        """Mean number of agents an agent-step depends on, itself included."""
        return 1 + len(self.partners) / (len(self.offsets) - 1)


def interactions(trace: Trace, metric: Metric, radius: float) -> InteractionGraph:
    """Mine which agents perceive each other at every step.

    In the plane, perception in `metric` must not reach further than in Chebyshev's.
    """
    core = core_metric(metric)
    steps, agents = trace.steps, trace.agents
    chunk = max(1, _POINTS_AT_ONCE // agents)
    rows: list[Int64] = []
    partners: list[Int32] = []
    for first in range(0, steps, chunk):
        points = trace.positions[first : first + chunk].reshape(-1, 2).astype(np.float64)
        if isinstance(metric, Hops):
            left, right = _neighbours_in_graph(points, agents, metric, radius)
        else:
            left, right = _neighbours(points, agents, radius)
            near = np.abs(points[left] - points[right]).max(axis=1) <= radius
            left, right = left[near], right[near]
        left, right = left[left != right], right[left != right]
        perceived = _core.perceives(core, points[left], points[right], radius)
        left, right = left[perceived], right[perceived]
        order = np.lexsort((right, left))
        rows.append(left[order] + first * agents)
        partners.append((right[order] % agents).astype(np.int32))
    counts = np.bincount(np.concatenate(rows), minlength=steps * agents)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return InteractionGraph(offsets, np.concatenate(partners))


def _neighbours(points: Float64, agents: int, radius: float) -> tuple[Int64, Int64]:
    """Index pairs of points at the same step in the same or adjacent cells of edge `radius`."""
    edge = max(radius, 1.0)
    cell = np.floor(points / edge).astype(np.int64)
    cell -= cell.min(axis=0) - 1
    width, height = cell.max(axis=0) + 2
    step = np.arange(len(points)) // agents
    key = (step * width + cell[:, 0]) * height + cell[:, 1]
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    left, right = [], []
    for dx in (-1, 0, 1):
        target = key + dx * height
        begin = np.searchsorted(sorted_key, target - 1, side="left")
        end = np.searchsorted(sorted_key, target + 1, side="right")
        owner, index = _ranges(begin, end)
        left.append(owner)
        right.append(order[index])
    return np.concatenate(left), np.concatenate(right)


def _neighbours_in_graph(
    points: Float64, agents: int, metric: Hops, radius: float
) -> tuple[Int64, Int64]:
    """Index pairs of points at the same step whose nodes are within `radius`."""
    nodes = len(metric.neighbours)
    balls = [np.array(metric.ball(node, radius), np.int64) for node in range(nodes)]
    ball_offsets = np.cumsum([0, *map(len, balls)])
    node = points[:, 0].astype(np.int64)
    step = np.arange(len(points)) // agents
    key = step * nodes + node
    order = np.argsort(key, kind="stable")
    owner, index = _ranges(ball_offsets[node], ball_offsets[node + 1])
    target = step[owner] * nodes + np.concatenate(balls)[index]
    begin = np.searchsorted(key[order], target, side="left")
    end = np.searchsorted(key[order], target, side="right")
    pair, index = _ranges(begin, end)
    return owner[pair], order[index]


def _ranges(begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """All (i, j) with begin[i] <= j < end[i], as two columns."""
    count = end - begin
    return np.repeat(np.arange(len(begin)), count), ranges(begin, count)


@dataclass(frozen=True)
class CriticalPath:
    """The heaviest chain of calls that must run one after another."""

    weight: float
    """Sum of the weights along the chain."""
    calls: Int64
    """The calls of the chain, first to last."""


def critical_path(trace: Trace, graph: InteractionGraph, weight: Float64) -> CriticalPath:
    """Find the heaviest chain through the mined dependencies; `weight` is (calls,), >= 0.

    An agent-step starts when its agent and all its partners, at this step and at the one before,
    have finished all earlier steps: synchronised before and after (AI Metropolis §4.2). A call
    starts when its agent-step has started and its parents, of any agent, have finished.
    """
    steps, agents = trace.steps, trace.agents
    chains = _Chains(trace, weight)
    finish = np.zeros(agents)
    waits_for = np.empty((steps, agents), dtype=np.int64)
    no_partners: tuple[Int64, Int32] = (np.zeros(0, np.int64), np.zeros(0, np.int32))
    before = no_partners
    for step in range(steps):
        lo, hi = step * agents, (step + 1) * agents
        offsets = graph.offsets[lo : hi + 1]
        owner = np.repeat(np.arange(agents), np.diff(offsets))
        here = (owner, graph.partners[offsets[0] : offsets[-1]])
        waits_for[step] = np.arange(agents)
        start = finish.copy()
        for owners, others in (before, here):
            # The latest partner counts: assignment in ascending order keeps the last.
            order = np.argsort(finish[others], kind="stable")
            owners, others = owners[order], others[order]
            later = finish[others] > start[owners]
            start[owners[later]] = finish[others[later]]
            waits_for[step][owners[later]] = others[later]
        chains.finish(step, start)
        finish = start
        before = here
    agent = int(np.argmax(finish))
    total = float(finish[agent])
    chain: list[int] = []
    for step in range(steps - 1, -1, -1):
        call = chains.last_of.get((step, agent), -1)
        while call >= 0:
            chain.append(call)
            agent = int(trace.calls.agent[call])
            call = chains.previous[call]
        agent = int(waits_for[step, agent])
    return CriticalPath(total, np.array(chain[::-1], dtype=np.int64))


class _Chains:
    """The heaviest chains of calls within each step."""

    def __init__(self, trace: Trace, weight: Float64) -> None:
        calls = trace.calls
        order = parents_first(calls)
        self._order = order.tolist()
        self._first = np.searchsorted(calls.step[order], np.arange(trace.steps + 1)).tolist()
        self._agent, self._weight = calls.agent.tolist(), weight.tolist()
        self._parents, self._offsets = calls.parents.tolist(), calls.parent_offsets.tolist()
        self._finish = [0.0] * len(calls)
        self.previous = [-1] * len(calls)
        """The parent that a call waited for; -1: it waited for the start of its agent-step."""
        self.last_of: dict[tuple[int, int], int] = {}
        """(step, agent) -> the call that finishes it."""

    def finish(self, step: int, at: Float64) -> None:
        """Update `at`, (agents,), from the times each agent starts `step` to those it finishes."""
        starts: dict[int, float] = {}
        for call in self._order[self._first[step] : self._first[step + 1]]:
            agent = self._agent[call]
            begin = starts.setdefault(agent, float(at[agent]))
            for parent in self._parents[self._offsets[call] : self._offsets[call + 1]]:
                if self._finish[parent] >= begin:
                    begin, self.previous[call] = self._finish[parent], parent
            self._finish[call] = end = begin + self._weight[call]
            if end >= at[agent]:
                at[agent], self.last_of[step, agent] = end, call
