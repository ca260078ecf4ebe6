"""Times and memory of the core do not grow with what does not matter."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from metropolis import _core

CHEBYSHEV = _core.plane_metric("chebyshev")


def least_s(action: Callable[[], Callable[[], object]]) -> float:
    """CPU time of what `action` has prepared, at best."""
    times = []
    for _ in range(3):
        prepared = action()
        began_s = process_time()
        prepared()
        times.append(process_time() - began_s)
    return min(times)


def test_an_agent_that_waits_for_all_others() -> None:
    def meeting_of_all(agents: int) -> float:
        offsets = np.arange(2 * agents + 1) * agents
        partners = np.tile(np.arange(agents, dtype=np.int32), 2 * agents)

        def prepare() -> Callable[[], object]:
            controller = _core.make_graph_controller(agents, 2, offsets, partners)
            running = deque(controller.start())

            def run() -> None:
                while running:
                    _, members = running.popleft()
                    running.extend(controller.commit(members, [(0, 0)]))

            return run

        return least_s(prepare) / agents

    assert meeting_of_all(800) < 6 * meeting_of_all(200)


def test_a_commit_of_an_agent_far_behind() -> None:
    def laggard(skew: int) -> float:
        starts = np.array([[0, 0], [1e8, 0]])

        def prepare() -> Callable[[], object]:
            controller = _core.make_controller(
                1, 2, CHEBYSHEV, 1, starts, skew + 1000, steps=[0, skew]
            )
            controller.start()
            return lambda: [controller.commit([0], [(0, 0)]) for _ in range(500)]

        return least_s(prepare)

    assert laggard(1_000_000) < 10 * laggard(1000)


def test_a_crowd_that_waits_for_one_that_has_failed() -> None:
    """All stand on one tile, a step ahead of an agent far away; the first to end fails."""
    count, proceed, resolve = 400, 5, 4
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
    [(_, id, _, crowd, *_)] = [one for one in speculation.settle() if one[0] == resolve]
    speculation.resolved(id, [], [], [], [(agent, 0) for agent in crowd], [])
    speculation.settle()
    ahead = [one for one in speculation.speculate(range(count)) if one[0] == proceed]
    proceeded(ahead[0])
    [(_, id, *_)] = speculation.settle()
    speculation.failed(id)
    began_s = process_time()
    for command in ahead[1:]:
        proceeded(command)
        assert speculation.settle() == []
    assert process_time() - began_s < 1


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
