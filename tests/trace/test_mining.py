"""Mining against brute force."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV, PLANE_METRICS, Hops, PlaneMetric
from metropolis.trace import mining
from metropolis.trace.mining import Float64, critical_path, interactions
from metropolis.trace.schema import Trace
from tests.small_traces import graph_trace, small_trace, small_traces


@given(small_traces, st.sampled_from(list(PLANE_METRICS.values())), st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_interactions_are_all_pairs_within_the_radius(
    trace: Trace, metric: PlaneMetric, radius: int
) -> None:
    graph = interactions(trace, metric, radius)
    for step in range(trace.steps):
        for agent in range(trace.agents):
            at = trace.positions[step].tolist()
            near = [b for b in range(trace.agents) if metric.perceives(at[agent], at[b], radius)]
            row = step * trace.agents + agent
            mined = graph.partners[graph.offsets[row] : graph.offsets[row + 1]]
            assert mined.tolist() == [b for b in near if b != agent]


@given(st.integers(0, 2**32), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_interactions_in_a_graph(seed: int, radius: int) -> None:
    trace = graph_trace(seed)
    assert trace.meta.graph is not None
    metric = Hops(trace.meta.graph)
    graph = interactions(trace, metric, radius)
    for row in range(trace.steps * trace.agents):
        step, agent = divmod(row, trace.agents)
        at = trace.positions[step].tolist()
        mined = graph.partners[graph.offsets[row] : graph.offsets[row + 1]].tolist()
        near = [b for b in range(trace.agents) if metric.perceives(at[agent], at[b], radius)]
        assert mined == [b for b in near if b != agent]


def test_interactions_do_not_depend_on_the_chunking(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_trace(1, agents=6, steps=12, edge=6, radius=2)
    whole = interactions(trace, CHEBYSHEV, 2)
    monkeypatch.setattr(mining, "_POINTS_AT_ONCE", 13)
    chunked = interactions(trace, CHEBYSHEV, 2)
    assert (whole.offsets == chunked.offsets).all()
    assert (whole.partners == chunked.partners).all()


@given(small_traces)
@settings(max_examples=100, deadline=None)
def test_the_critical_path_is_the_heaviest_chain(trace: Trace) -> None:
    graph = interactions(trace, CHEBYSHEV, trace.meta.perception_radius)
    weight = (trace.calls.prompt_tokens + trace.calls.output_tokens).astype(np.float64)
    path = critical_path(trace, graph, weight)
    assert path.weight == weight[path.calls].sum()
    assert path.weight == _longest_by_definition(trace, graph, weight)
    row = trace.calls.step[path.calls]
    assert (np.diff(row) >= 0).all()


def _longest_by_definition(trace: Trace, graph: mining.InteractionGraph, weight: Float64) -> float:
    agents, calls = trace.agents, trace.calls
    offsets = trace.call_offsets()

    def partners(step: int, agent: int) -> list[int]:
        row = step * agents + agent
        return list(graph.partners[graph.offsets[row] : graph.offsets[row + 1]].tolist())

    finish = [0.0] * agents
    for step in range(trace.steps):
        start = []
        for agent in range(agents):
            waited_for = {agent, *partners(step, agent)}
            if step:
                waited_for |= set(partners(step - 1, agent))
            start.append(max(finish[other] for other in waited_for))

        @cache
        def end(call: int, start: tuple[float, ...] = tuple(start)) -> float:
            parents = calls.parents[calls.parent_offsets[call] : calls.parent_offsets[call + 1]]
            begin = max([start[calls.agent[call]], *(end(parent) for parent in parents.tolist())])
            return float(begin + weight[call])

        finish = start.copy()
        for call in range(offsets[step * agents], offsets[(step + 1) * agents]):
            agent = calls.agent[call]
            finish[agent] = max(finish[agent], end(call))
    return max(finish)
