"""Many agents on one tile, and many places: what the core holds, and what it commands."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np

from metropolis import _core
from tests.core.speculation_cases import PROCEED, RESOLVE

CHEBYSHEV = _core.plane_metric("chebyshev")


def test_a_crowd_that_waits_for_one_that_has_failed() -> None:
    """All stand on one tile, a step ahead of an agent far away; the first to end fails.

    Nothing is resolved before the slowest agent has come: the crowd waits for the one that failed.
    """
    count = 400
    starts = np.array([*[(0, 0)] * count, (500, 0)], float)
    controller = _core.make_controller(2, 1000, CHEBYSHEV, 1, starts, 9)
    speculation = _core.Speculation(
        controller=controller, metric=CHEBYSHEV, perception_radius=4, cluster_radius=2,
        target_step=9, bodies=list(range(count + 1)), minds=[0] * (count + 1),
        entities=[(agent, *start, 0) for agent, start in enumerate(starts)],
    )  # fmt: skip

    def proceeded(command: Any) -> None:
        speculation.observed(command[1], [])
        speculation.proceeded(command[1])

    for command in speculation.start():
        if command[3] != (count,):
            proceeded(command)
    [(_, id, _, crowd, *_)] = [one for one in speculation.settle() if one[0] == RESOLVE]
    speculation.resolved(id, [], [], [], [(agent, 0) for agent in crowd], [])
    speculation.settle()
    ahead = [one for one in speculation.speculate(range(count)) if one[0] == PROCEED]
    proceeded(ahead[0])
    [(_, id, *_)] = speculation.settle()
    speculation.failed(id)
    for command in ahead[1:]:
        proceeded(command)
        assert speculation.settle() == []
    speculation.validate()


def test_distances_in_a_graph_are_dropped_when_their_memory_is_full() -> None:
    nodes = 500_000
    metric = _core.hops_metric(np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32))
    places = np.stack([np.arange(nodes), np.zeros(nodes)], axis=1).astype(float)
    before = resident_bytes()
    _core.perceives(metric, places, places, 0)
    assert resident_bytes() - before < 64 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
