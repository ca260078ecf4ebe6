"""The C++ implementations of metrics."""

from __future__ import annotations

import numpy as np

import metropolis._core as _core
from metropolis.rules.metrics import (
    PLANE_METRICS,
    GenAgent,
    Geodesic,
    Hops,
    Metric,
    PlaneMetric,
)
from metropolis.types import MetropolisError


def core_metric(metric: Metric) -> _core.Metric:
    """The C++ implementation of a metric; raises MetropolisError when there is none."""
    if isinstance(metric, PlaneMetric) and metric.name in PLANE_METRICS:
        return _core.plane_metric(metric.name)
    if isinstance(metric, Geodesic):
        return _core.geodesic_metric(metric.walls.astype(np.uint8), metric.horizon)
    if isinstance(metric, GenAgent):
        return _core.genagent_metric(
            metric.walls.astype(np.uint8), metric.arenas, metric.max_velocity, metric.horizon
        )
    if isinstance(metric, Hops):
        degrees = [len(of) for of in metric.neighbours]
        offsets = np.concatenate([[0], np.cumsum(degrees, dtype=np.int64)])
        nodes = [node for of in metric.neighbours for node in of]
        return _core.hops_metric(offsets, np.array(nodes, dtype=np.int32))
    raise MetropolisError(
        f"the metric {metric.name} has no C++ implementation; use the reference controller"
    )
