"""What a trace says about its true dependencies: who perceived whom, and the longest chain.

AI Metropolis §2.2 (1.85 agents per agent-step) and §4.2 (the settings *oracle* and *critical*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metropolis import _core
from metropolis.rules.metrics import Hops, Metric
from metropolis.rules.native import core_metric
from metropolis.trace.schema import Int32, Int64, Trace

Float64 = npt.NDArray[np.float64]

_POINTS_AT_ONCE = 200_000


@dataclass(frozen=True)
class InteractionGraph:
    """Who is in whose observation, at every step: the mined dependencies of `oracle`.

    The partners of agent a at step s, without a, are `partners[offsets[i]:offsets[i + 1]]` with
    i = s * agents + a. Agents in each other's observation synchronise before and after the step.
    """

    offsets: Int64
    """(steps * agents + 1,)"""
    partners: Int32

    @property
    def dependencies_per_agent_step(self) -> float:
        """Mean number of agents an agent-step depends on, itself included."""
        return 1 + len(self.partners) / (len(self.offsets) - 1)


def interactions(trace: Trace, metric: Metric, radius: float) -> InteractionGraph:
    """Mine who perceives whom at every step.

    In the plane `metric` perceives no further than Chebyshev's.
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
    """Index pairs of points of one step in the same or adjacent cells of edge `radius`."""
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
    """Index pairs of points of one step whose nodes are within `radius`."""
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
    owner = np.repeat(np.arange(len(begin)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return owner, np.repeat(begin, count) + within


@dataclass(frozen=True)
class CriticalPath:
    """The heaviest chain of calls that must run one after another."""

    weight: float
    """Sum of the weights along the chain."""
    calls: Int64
    """Its calls, first to last."""


def critical_path(trace: Trace, graph: InteractionGraph, weight: Float64) -> CriticalPath:
    """Find the heaviest chain through the mined dependencies; `weight` is (calls,), >= 0.

    An agent-step starts when its agent and all its partners, at this step and at the one before,
    have finished everything earlier: synchronised before and after (AI Metropolis §4.2).
    """
    steps, agents = trace.steps, trace.agents
    duration, last_call, previous_call = _chains_within_agent_steps(trace, weight)
    finish = np.zeros((steps + 1, agents))
    waits_for = np.empty((steps, agents), dtype=np.int64)
    no_partners: tuple[Int64, Int32] = (np.zeros(0, np.int64), np.zeros(0, np.int32))
    before = no_partners
    for step in range(steps):
        lo, hi = step * agents, (step + 1) * agents
        offsets = graph.offsets[lo : hi + 1]
        owner = np.repeat(np.arange(agents), np.diff(offsets))
        here = (owner, graph.partners[offsets[0] : offsets[-1]])
        waits_for[step] = np.arange(agents)
        start = finish[step].copy()
        for owners, others in (before, here):
            # Of several partners the latest counts; assigning in ascending order keeps it.
            order = np.argsort(finish[step][others], kind="stable")
            owners, others = owners[order], others[order]
            later = finish[step][others] > start[owners]
            start[owners[later]] = finish[step][others[later]]
            waits_for[step][owners[later]] = others[later]
        finish[step + 1] = start + duration[lo:hi]
        before = here
    agent = int(np.argmax(finish[steps]))
    total = float(finish[steps, agent])
    chain: list[int] = []
    for step in range(steps - 1, -1, -1):
        call = int(last_call[step * agents + agent])
        while call >= 0:
            chain.append(call)
            call = int(previous_call[call])
        agent = int(waits_for[step, agent])
    return CriticalPath(total, np.array(chain[::-1], dtype=np.int64))


def _chains_within_agent_steps(trace: Trace, weight: Float64) -> tuple[Float64, Int64, Int64]:
    """Heaviest chain of each agent-step: its weight, its last call (-1: none); call -> previous."""
    calls = trace.calls
    rows = trace.steps * trace.agents
    duration = np.zeros(rows)
    last_call = np.full(rows, -1, dtype=np.int64)
    previous_call = np.full(len(calls), -1, dtype=np.int64)
    row_of = calls.step.astype(np.int64) * trace.agents + calls.agent
    finish = weight.tolist()
    parents, offsets = calls.parents.tolist(), calls.parent_offsets.tolist()
    for call, row in enumerate(row_of.tolist()):
        own = parents[offsets[call] : offsets[call + 1]]
        if own:
            latest = max(own, key=finish.__getitem__)
            finish[call] += finish[latest]
            previous_call[call] = latest
        if last_call[row] < 0 or finish[call] >= duration[row]:
            duration[row] = finish[call]
            last_call[row] = call
    return duration, last_call, previous_call
