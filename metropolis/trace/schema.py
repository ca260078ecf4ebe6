"""A trace in memory; `metropolis.trace.parquet` defines its form on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from metropolis.maps.map import GridMap
from metropolis.notebook.card import card, figure, listed
from metropolis.notebook.chart import draw_chart
from metropolis.notebook.map_drawing import BODIES_MAX, draw_plane
from metropolis.trace.shown import Shown, window
from metropolis.types import MetropolisError
from metropolis.world.checks import whole_number

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TraceMeta:
    """Metadata of a whole trace."""

    name: str
    agents: tuple[str, ...]
    perception_radius: float
    max_velocity: float
    joint_radius: float | None = None
    """The distance within which two agents act together in a step; None: the perception radius."""
    metric: str = "chebyshev"
    """The metric of perception; see `metropolis.rules.metrics`."""
    step_s: float = 10.0
    """Simulated duration of a step, in seconds."""
    start: datetime = field(default_factory=lambda: datetime(2023, 2, 13))
    """Simulated time at which step 0 begins."""
    map: GridMap | None = None
    graph: tuple[tuple[int, ...], ...] | None = None
    """For the metric `hops`: the neighbours of each node; positions are (node, 0)."""
    movement_origin: str = "recorded"
    """`recorded` in a real run, or `generated`."""
    calls_origin: str = "recorded"
    """`recorded` in a real run, `derived` from other records of one, or `generated`."""
    source: str = ""


_COLUMNS = (
    "step",
    "agent",
    "function",
    "model",
    "prompt_tokens",
    "output_tokens",
    "prefix_id",
    "prefix_tokens",
)
"""The columns with one value per call."""


@dataclass(frozen=True, eq=False)  # arrays are not equal or unequal as a whole
class Calls:
    """LLM calls as columns, sorted by (step, agent, seq); n calls.

    `parents` of call i are `parents[parent_offsets[i]:parent_offsets[i + 1]]`: indices of calls of
    the same step, which must complete before call i is sent. Parents of the same agent precede the
    call; parents of other agents, with which its agent acts together, may follow it in the columns.
    """

    step: Int32
    agent: Int32
    function: Int32
    """Index into `functions`."""
    functions: tuple[str, ...]
    model: Int32
    """Index into `models`."""
    models: tuple[str, ...]
    prompt_tokens: Int32
    output_tokens: Int32
    prefix_id: Int64
    """Calls with the same prefix_id begin with the same `prefix_tokens` tokens; -1: none."""
    prefix_tokens: Int32
    parent_offsets: Int64
    """(n + 1,)"""
    parents: Int64
    prompt: Sequence[str | None] | None = None
    completion: Sequence[str | None] | None = None

    @classmethod
    def empty(cls) -> Calls:
        """Return columns without calls."""
        none = np.zeros(0, np.int32)
        return cls(
            none, none, none, (), none, (), none, none, none.astype(np.int64), none,
            np.zeros(1, np.int64), none.astype(np.int64),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.step)

    def keep(self, mask: npt.NDArray[np.bool_]) -> Calls:
        """The calls where `mask` holds; a dropped parent is replaced by its own parents."""
        kept = np.flatnonzero(mask)
        parents, counts = self._parents_where(mask)
        new_index = np.cumsum(mask) - 1
        return replace(
            self,
            **{name: getattr(self, name)[kept] for name in _COLUMNS},
            parent_offsets=np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int64),
            parents=new_index[parents[np.repeat(mask, counts)]].astype(np.int64),
            prompt=None if self.prompt is None else [self.prompt[i] for i in kept.tolist()],
            completion=None
            if self.completion is None
            else [self.completion[i] for i in kept.tolist()],
        )

    def _parents_where(self, mask: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
        """Parents and their number per call; kept calls have only parents where `mask` holds."""
        counts = np.diff(self.parent_offsets)
        if (mask[self.parents] | ~np.repeat(mask, counts)).all():
            return self.parents, counts
        ends = self.parent_offsets.tolist()
        parents = self.parents.tolist()
        of = [set(parents[first:end]) for first, end in pairwise(ends)]
        is_kept = mask.tolist()
        for call, waited in enumerate(of):
            if not is_kept[call]:
                continue
            left_out = [parent for parent in waited if not is_kept[parent]]
            while left_out:
                parent = left_out.pop()
                left_out += [p for p in of[parent] - waited if not is_kept[p]]
                waited |= of[parent]
            waited -= {parent for parent in waited if not is_kept[parent]}
        found = [parent for waited in of for parent in sorted(waited)]
        return np.array(found, np.int64), np.array([len(waited) for waited in of], np.int64)


@dataclass(frozen=True, eq=False)  # arrays are not equal or unequal as a whole
class ValueDependencies:
    """The agent-steps whose effects other agent-steps depend on, by value; n dependencies.

    Agent a at step s depends on the steps s - ago[j] of the agents `writer[j]`, for j from
    `offsets[i]` to below `offsets[i + 1]` with i = s * agents + a. An agent also depends on its own
    previous step, and on all that its previous step depends on: these are left out.
    """

    offsets: Int64
    """(steps * agents + 1,)"""
    writer: Int32
    """(n,): the agent of each dependency."""
    ago: Int32
    """(n,): how many steps ago, at least 1."""

    def rows(self, first: int, last: int) -> ValueDependencies:
        """The agent-steps [first, last), numbered step by step."""
        bounds = self.offsets[first : last + 1]
        listed = slice(bounds[0], bounds[-1])
        return ValueDependencies(bounds - bounds[0], self.writer[listed], self.ago[listed])

    def window(self, first: int, last: int, agents: int) -> ValueDependencies:
        """The steps [first, last); what happened before them is known."""
        cut = self.rows(first * agents, last * agents)
        row = np.repeat(np.arange(len(cut.offsets) - 1), np.diff(cut.offsets))
        kept = cut.ago <= row // agents
        counts = np.bincount(row[kept], minlength=len(cut.offsets) - 1)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return ValueDependencies(offsets, cut.writer[kept], cut.ago[kept])


@dataclass(frozen=True, eq=False)  # arrays are not equal or unequal as a whole
class Trace:
    """Positions and LLM calls of a run.

    `positions` is (steps, agents, 2): each agent's position at the beginning of the step.
    """

    meta: TraceMeta
    positions: Float32
    calls: Calls
    dependencies: ValueDependencies | None = None
    """Dependencies by value; None: it is unknown what agents read and wrote."""
    shown: tuple[Shown, ...] | None = None
    """What agents do and say, ordered by step, then agent; None: it is unknown."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.positions.shape[0])

    @property
    def agents(self) -> int:
        """Number of agents."""
        return int(self.positions.shape[1])

    def call_offsets(self) -> Int64:
        """(steps * agents + 1,): agent a calls [o[i], o[i + 1]) at step s, i = s * agents + a."""
        key = self.calls.step.astype(np.int64) * self.agents + self.calls.agent
        return np.searchsorted(key, np.arange(self.steps * self.agents + 1)).astype(np.int64)

    def check_filled(self) -> None:
        """Raise MetropolisError if there is no step or no agent."""
        if not self.positions.size:
            raise MetropolisError(
                f"the trace {self.meta.name!r} has {self.steps} steps of {self.agents} agents; at "
                "least one step of one agent is needed"
            )

    def hour_of_step(self, step: int) -> float:
        """The simulated time at which `step` begins, in hours since the midnight before step 0."""
        start = self.meta.start
        return start.hour + start.minute / 60 + (start.second + step * self.meta.step_s) / 3600

    def window(self, first: int, last: int) -> Trace:
        """The steps [first, last) as a separate trace.

        Raises MetropolisError unless 0 <= first <= last <= steps.
        """
        first = whole_number("first", first, 0, self.steps)
        last = whole_number("last", last, first, self.steps)
        calls = self.calls.keep((self.calls.step >= first) & (self.calls.step < last))
        return Trace(
            replace(self.meta, start=self.meta.start + timedelta(seconds=first * self.meta.step_s)),
            self.positions[first:last],
            replace(calls, step=(calls.step - first).astype(np.int32)),
            self.dependencies and self.dependencies.window(first, last, self.agents),
            None if self.shown is None else window(self.shown, first, last),
        )

    def between_hours(self, first: float, last: float) -> Trace:
        """The steps from hour `first` to hour `last` of the simulated day, to the nearest step.

        Raises MetropolisError unless the trace covers them.
        """
        return self.window(*self.steps_between(first, last))

    def steps_between(self, first: float, last: float) -> tuple[int, int]:
        """The first step of `between_hours`, and the one after the last."""
        begin, end = self.hour_of_step(0), self.hour_of_step(self.steps)
        per_hour = 3600 / self.meta.step_s
        bounds = (first - begin) * per_hour, (last - begin) * per_hour
        if not -0.5 < bounds[0] <= bounds[1] < self.steps + 0.5:
            raise MetropolisError(
                f"{first:g}-{last:g} is not within the trace, which covers {begin:g}-{end:g}"
            )
        return round(bounds[0]), round(bounds[1])

    def first_agents(self, count: int) -> Trace:
        """The first `count` agents as a separate trace, without dependencies by value.

        Raises MetropolisError on a count below 1; one above `agents` is that of all.
        """
        count = whole_number("count", count, 1)
        return Trace(
            replace(self.meta, agents=self.meta.agents[:count]),
            np.ascontiguousarray(self.positions[:, :count]),
            self.calls.keep(self.calls.agent < count),
            shown=self.shown and tuple(of for of in self.shown if of.agent < count),
        )

    def _repr_html_(self) -> str:
        meta, calls = self.meta, self.calls
        hours = self.steps * meta.step_s / 3600
        tokens = [
            int(column.sum(dtype=np.int64)) for column in (calls.prompt_tokens, calls.output_tokens)
        ]
        facts = {
            "agents": f"{self.agents:,}: {listed(meta.agents)}",
            "length": f"{self.steps:,} steps of {meta.step_s:g} s ({hours:,.1f} h), from "
            f"{meta.start:%Y-%m-%d %H:%M}",
            "calls": f"{len(calls):,}, {tokens[0]:,} prompt and {tokens[1]:,} output tokens",
            "functions": listed(calls.functions) or None,
            "models": listed(calls.models) or None,
            "perception radius": meta.perception_radius,
            "maximum velocity": meta.max_velocity,
            "metric": meta.metric,
            "origin": f"movement {meta.movement_origin}, calls {meta.calls_origin}",
            "source": meta.source or None,
        }
        figures = []
        if self.steps and self.agents:
            at = self.positions[0]
            drawing = draw_plane(at) if meta.map is None else meta.map.drawing(at)
            figures = (
                [figure(drawing, f"{min(self.agents, BODIES_MAX):,} agents at the beginning.")]
                if meta.graph is None
                else []
            )
            by_step = np.bincount(calls.step, minlength=self.steps)
            figures.append(
                figure(draw_chart(by_step), f"Calls by step, at most {by_step.max():,}.")
            )
        return card("trace", meta.name, facts, figures)
