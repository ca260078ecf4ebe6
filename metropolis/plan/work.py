"""The remaining work of a node, and its simulation (SamuLLM §4.1).

The scheduling of requests is that of the simulated instances (`metropolis.sim`): a data-parallel
model is a pool of `dp` instances. A preempted model loses its caches: a request that had begun
continues with its prompt and the tokens it has generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from metropolis._core import Profile, simulate
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.workload import Counts, NodeWorkload

Times: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Remaining:
    """The requests of a node that are not complete: m of its n requests."""

    workload: NodeWorkload
    rows: Counts
    """(m,): the rows of these requests in `workload`, ascending."""
    generated: Counts
    """(m,): the tokens generated so far for each request."""

    @classmethod
    def all_of(cls, workload: NodeWorkload) -> Remaining:
        """All requests of a workload, without generated tokens."""
        count = len(workload)
        return cls(workload, np.arange(count), np.zeros(count, dtype=np.int64))

    @property
    def flops(self) -> float:
        """Operations left, without recomputation."""
        return float(self.flops_by_row.sum())

    @cached_property
    def flops_by_row(self) -> Times:
        """Operations left by row, without recomputation."""
        left = 1 - self.generated / self.workload.output_tokens[self.rows]
        return self.workload.flops[self.rows] * left

    @cached_property
    def parents(self) -> Counts:
        """The index of each row's predecessor among the rows; -1: none, or it is complete."""
        index = np.full(len(self.workload), -1, dtype=np.int64)
        index[self.rows] = np.arange(len(self.rows))
        previous = self.workload.previous[self.rows]
        return np.where(previous >= 0, index[previous], -1)


@dataclass(frozen=True, eq=False)
class Run:
    """A simulated run of the remaining work of a node; times from when its model is loaded."""

    remaining: Remaining
    completed_s: Times
    """(m,): time at which each request is complete; infinite if its needs are never met."""
    first_token_s: Times

    @cached_property
    def finished_s(self) -> float:
        """Time at which all requests are complete."""
        return float(self.completed_s.max(initial=0.0))

    def flops_until(self, until_s: float) -> float:
        """Operations done by `until_s`, spread evenly from each request's first to last token."""
        if until_s >= self.finished_s:
            return self.remaining.flops
        times, flops = self._curve
        return float(np.interp(until_s, times, flops, left=0.0))

    @cached_property
    def _curve(self) -> tuple[Times, Times]:
        known = np.isfinite(self.completed_s)
        if not known.any():
            return np.zeros(1), np.zeros(1)
        ends, starts = self.completed_s[known], self.first_token_s[known]
        starts = np.minimum(starts, ends - 1e-6)
        rate = self.remaining.flops_by_row[known] / (ends - starts)
        times = np.linspace(starts.min(), ends.max(), 257)
        # The sum of ramps, each from a request's first token to its last.
        flops = np.zeros(len(times))
        for at, sign in ((starts, 1.0), (ends, -1.0)):
            order = np.argsort(at)
            index = np.searchsorted(at[order], times, side="right")
            rates = np.concatenate(([0.0], np.cumsum(rate[order])))
            moments = np.concatenate(([0.0], np.cumsum((rate * at)[order])))
            flops += sign * (rates[index] * times - moments[index])
        return times, flops


def run(remaining: Remaining, plan: ExecutionPlan, profile: Profile, ready_s: Times) -> Run:
    """Simulate; `ready_s`: when the needs of each row outside the node are met, inf: never."""
    completed_s, first_token_s, _ = _simulated(remaining, plan, profile, ready_s, inf)
    return Run(remaining, completed_s, first_token_s)


def remaining_after(
    remaining: Remaining, plan: ExecutionPlan, profile: Profile, ready_s: Times, until_s: float
) -> Remaining:
    """What is left of a run that is interrupted at `until_s`."""
    completed_s, _, generated = _simulated(remaining, plan, profile, ready_s, until_s)
    left = completed_s > until_s
    rows, tokens = remaining.rows[left], remaining.generated[left] + generated[left]
    tokens = np.minimum(tokens, remaining.workload.output_tokens[rows] - 1)
    return Remaining(remaining.workload, rows, tokens)


def _simulated(
    remaining: Remaining, plan: ExecutionPlan, profile: Profile, ready_s: Times, until_s: float
) -> tuple[Times, Times, Counts]:
    """Completion, first token and tokens generated of each row."""
    rows, parents = remaining.rows, remaining.parents
    arrival = np.maximum(ready_s, 0.0)
    chained = np.flatnonzero(parents >= 0)
    if arrival.any():
        for index in chained.tolist():  # a predecessor comes first
            arrival[index] = max(arrival[index], arrival[parents[index]])
    order = np.argsort(arrival, kind="stable")
    order = order[: np.searchsorted(arrival[order], inf)]
    count = len(rows)
    completed, first = np.full(count, inf), np.full(count, inf)
    generated = np.zeros(count, dtype=np.int64)
    if not len(order):
        return completed, first, generated
    position = np.full(count, -1, dtype=np.int64)
    position[order] = np.arange(len(order))
    workload = remaining.workload
    result = simulate(
        profile,
        arrival[order],
        (workload.prompt_tokens[rows] + remaining.generated)[order],
        (workload.output_tokens[rows] - remaining.generated)[order],
        parent=np.where(parents >= 0, position[parents], -1)[order] if len(chained) else None,
        instances=plan.dp,
        until_sim_s=until_s,
    )
    completed[order] = result["last_token_sim_s"]
    first[order] = result["first_token_sim_s"]
    generated[order] = result["generated_tokens"]
    return completed, first, generated
