"""Who perceives an event: the listeners of speech in worlds that do not name them."""

from __future__ import annotations

import numpy as np

from metropolis.rules.metrics import Hops, Metric
from metropolis.trace.schema import Float32
from metropolis.types import AgentId, Position


def perceivers(metric: Metric, radius: float, at: Position, positions: Float32) -> list[AgentId]:
    """The agents at `positions`, (agents, 2), that perceive what happens at `at`."""
    if isinstance(metric, Hops):
        near = np.isin(positions[:, 0], metric.ball(int(at[0]), radius))
        return [int(agent) for agent in np.flatnonzero(near)]
    # no metric is shorter than the larger of both distances along the axes
    near = np.abs(positions - np.array(at, np.float32)).max(axis=1) <= radius
    return [
        int(agent)
        for agent in np.flatnonzero(near)
        if metric.perceives((float(positions[agent, 0]), float(positions[agent, 1])), at, radius)
    ]
