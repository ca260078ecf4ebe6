"""Random small traces for property tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from random import Random

import numpy as np
from hypothesis import strategies as st

from metropolis.trace.schema import Calls, Trace, TraceMeta, ValueDependencies


def small_trace(
    seed: int,
    *,
    agents: int,
    steps: int,
    edge: int,
    radius: float,
    velocity: int = 1,
    talk: float = 0.0,
) -> Trace:
    """A random walk in a square of `edge` tiles, with random DAGs of calls inside agent-steps.

    `talk`: how likely a call waits for a certain one of another agent in the same step.
    """
    draw = np.random.default_rng(seed)
    moves = draw.integers(-velocity, velocity + 1, (steps, agents, 2))
    moves[0] = draw.integers(0, edge, (agents, 2))
    positions = np.empty((steps, agents, 2), np.float32)
    at = moves[0]
    for step in range(steps):
        at = np.clip(at + (moves[step] if step else 0), 0, edge - 1)
        positions[step] = at
    step_of: list[int] = []
    agent_of: list[int] = []
    parents: list[list[int]] = []
    for step in range(steps):
        for agent in range(agents):
            first = len(step_of)
            for seq in range(int(draw.integers(0, 5)) if draw.random() < 0.5 else 0):
                step_of.append(step)
                agent_of.append(agent)
                parents.append([first + p for p in range(seq) if draw.random() < 0.4])
    n = len(step_of)
    for call, parent in _talks(step_of, agent_of, seed, talk):
        parents[call].append(parent)
    counts = np.array([len(p) for p in parents], np.int64)
    return Trace(
        TraceMeta(
            name=f"small {seed}",
            agents=tuple(f"agent {a}" for a in range(agents)),
            perception_radius=radius,
            max_velocity=velocity,
            movement_origin="generated",
            calls_origin="generated",
        ),
        positions,
        Calls(
            step=np.array(step_of, np.int32),
            agent=np.array(agent_of, np.int32),
            function=draw.integers(0, 2, n).astype(np.int32),
            functions=("plan", "converse"),
            model=np.zeros(n, np.int32),
            models=("model",),
            prompt_tokens=draw.integers(1, 400, n).astype(np.int32),
            output_tokens=draw.integers(1, 40, n).astype(np.int32),
            prefix_id=np.full(n, -1, np.int64),
            prefix_tokens=np.zeros(n, np.int32),
            parent_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            parents=np.array([q for p in parents for q in sorted(p)], np.int64),
        ),
        _dependencies(seed, agents, steps),
    )


def _dependencies(seed: int, agents: int, steps: int) -> ValueDependencies:
    """Agent-steps depend on earlier ones of other agents, at random."""
    draw = Random(seed)
    found = [
        [
            (b, draw.randint(1, step))
            for b in range(agents)
            if b != a and step and draw.random() < 0.2
        ]
        for step in range(steps)
        for a in range(agents)
    ]
    listed = np.array([one for of in found for one in of], np.int32).reshape(-1, 2)
    offsets = np.cumsum([0, *map(len, found)]).astype(np.int64)
    return ValueDependencies(offsets, listed[:, 0].copy(), listed[:, 1].copy())


def _talks(
    step_of: list[int], agent_of: list[int], seed: int, likely: float
) -> Iterator[tuple[int, int]]:
    """(call, parent) of different agents at one step, in no cycle: parents have an earlier time."""
    draw = Random(seed)
    row = list(zip(step_of, agent_of, strict=True))
    time = [draw.random() for _ in row]
    for call in range(1, len(row)):
        if row[call] == row[call - 1]:
            time[call] += time[call - 1]
    for call, parent in permutations(range(len(row)), 2):
        may_wait = row[call][0] == row[parent][0] and row[call] != row[parent]
        if may_wait and time[parent] < time[call] and draw.random() < likely:
            yield call, parent


def graph_trace(seed: int) -> Trace:
    """A random walk along the edges of a random graph, with calls."""
    trace = small_trace(seed, agents=5, steps=8, edge=4, radius=2)
    draw = Random(seed)
    nodes = draw.randint(1, 12)
    edges = [(i, draw.randrange(i)) for i in range(1, nodes) if draw.random() < 0.8]
    graph = tuple(
        tuple(sorted([j for i, j in edges if i == node] + [i for i, j in edges if j == node]))
        for node in range(nodes)
    )
    positions = np.zeros_like(trace.positions)
    at = [draw.randrange(nodes) for _ in range(trace.agents)]
    for step in range(trace.steps):
        positions[step, :, 0] = at
        at = [draw.choice([node, *graph[node]]) for node in at]
    meta = replace(trace.meta, metric="hops", graph=graph)
    return Trace(meta, positions, trace.calls)


small_traces = st.builds(
    small_trace,
    st.integers(0, 2**32 - 1),
    agents=st.integers(1, 6),
    steps=st.integers(1, 12),
    edge=st.integers(1, 14),
    radius=st.integers(0, 4).map(float),
    velocity=st.integers(1, 2),
    talk=st.sampled_from([0.0, 0.1, 0.5]),
)
