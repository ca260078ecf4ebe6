"""Summary statistics of a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metropolis.trace.schema import Trace
from metropolis.trace.shown import activities, conversations


@dataclass(frozen=True)
class FunctionSummary:
    """The calls of one function."""

    function: str
    calls: int
    prompt_tokens_mean: float
    output_tokens_mean: float


@dataclass(frozen=True)
class Summary:
    """Statistics of a trace. An agent-step is active if it makes calls."""

    name: str
    agents: int
    steps: int
    step_s: float
    start: str
    hours: float
    """Simulated hours covered."""
    perception_radius: float
    max_velocity: float
    metric: str
    map: str | None
    movement_origin: str
    calls_origin: str
    source: str
    calls: int
    prompt_tokens_mean: float
    output_tokens_mean: float
    calls_per_agent_day: float
    calls_per_active_step_mean: float
    calls_per_active_step_median: float
    calls_per_active_step_max: int
    active_share: float
    """Share of agent-steps that make a call."""
    stationary_share: float
    """Share of agent-steps, except those of the last step, in which the agent does not move."""
    walks: int
    """Number of uninterrupted sequences of moves."""
    walk_steps_median: float
    calls_per_hour: dict[int, int]
    """Keyed by hours since the midnight before step 0, including hours without calls."""
    functions: tuple[FunctionSummary, ...]
    """Most frequent first."""
    activities: int | None
    """Number of changes of what agents do; None: unknown."""
    conversations: int | None
    texts: int
    """Number of calls with the text of their prompt."""
    prefixes: int
    """Number of calls with a shared prefix."""
    has_values: bool
    """Whether it has dependencies by value."""


def summarise(trace: Trace) -> Summary:
    """Compute the statistics of `trace`. Raises MetropolisError if it is empty."""
    trace.check_filled()
    meta, calls = trace.meta, trace.calls
    moving = (np.diff(trace.positions, axis=0) != 0).any(axis=2)
    edges = np.diff(np.pad(moving, ((1, 1), (0, 0))).astype(np.int8), axis=0)
    begins, ends = np.nonzero(edges.T == 1), np.nonzero(edges.T == -1)
    walk_steps = ends[1] - begins[1]
    per_step = np.diff(trace.call_offsets())
    active = per_step[per_step > 0]
    hours = trace.steps * meta.step_s / 3600
    first_hour = trace.hour_of_step(0)
    hour = (round(first_hour * 3600) + calls.step * meta.step_s) // 3600
    counted = Counter(hour.astype(int).tolist())
    last_hour = int(np.ceil(round(first_hour + hours, 6)))
    functions = []
    for index in np.argsort(
        -np.bincount(calls.function, minlength=len(calls.functions)), kind="stable"
    ):
        own = calls.function == index
        if own.any():
            functions.append(
                FunctionSummary(
                    calls.functions[index],
                    int(own.sum()),
                    _mean(calls.prompt_tokens[own]),
                    _mean(calls.output_tokens[own]),
                )
            )
    return Summary(
        name=meta.name,
        agents=trace.agents,
        steps=trace.steps,
        step_s=meta.step_s,
        start=meta.start.isoformat(),
        hours=hours,
        perception_radius=meta.perception_radius,
        max_velocity=meta.max_velocity,
        metric=meta.metric,
        map=None if meta.map is None else meta.map.name,
        movement_origin=meta.movement_origin,
        calls_origin=meta.calls_origin,
        source=meta.source,
        calls=len(calls),
        prompt_tokens_mean=_mean(calls.prompt_tokens),
        output_tokens_mean=_mean(calls.output_tokens),
        calls_per_agent_day=len(calls) / trace.agents / hours * 24,
        calls_per_active_step_mean=_mean(active),
        calls_per_active_step_median=float(np.median(active)) if len(active) else 0.0,
        calls_per_active_step_max=int(active.max(initial=0)),
        active_share=len(active) / (trace.steps * trace.agents),
        stationary_share=1 - _mean(moving),
        walks=len(walk_steps),
        walk_steps_median=float(np.median(walk_steps)) if len(walk_steps) else 0.0,
        calls_per_hour={h: counted[h] for h in range(int(first_hour), last_hour)},
        functions=tuple(functions),
        activities=None if trace.shown is None else activities(trace.shown),
        conversations=None if trace.shown is None else conversations(trace.shown),
        texts=sum(text is not None for text in calls.prompt or ()),
        prefixes=int(np.count_nonzero(calls.prefix_tokens)),
        has_values=trace.dependencies is not None,
    )


def _mean(values: npt.NDArray[np.integer | np.bool_]) -> float:
    return float(np.mean(values)) if values.size else 0.0
