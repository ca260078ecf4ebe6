"""The fuzzer's cases for the metrics and controllers of `metropolis._core`."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from .draw import Draw


def metric(draw: Draw) -> Any:
    """A metric with positions from (0, 0) to (7, 7), or (0, 0) to (7, 0) for a graph."""
    kind = draw.random.randrange(4)
    height, width = draw.random.randint(8, 12), draw.random.randint(8, 12)
    if kind == 0:
        return draw.do("plane_metric", draw.one_of("chebyshev", "euclidean", "manhattan"))
    if kind == 3:
        offsets = np.arange(9) * 2
        ring = np.array([[(i - 1) % 8, (i + 1) % 8] for i in range(8)], np.int32).reshape(-1)
        return draw.do("hops_metric", draw.damaged(offsets), draw.damaged(ring))
    plan = draw.damaged(np.zeros((height, width), np.uint8))
    if kind == 1:
        return draw.do("geodesic_metric", plan, draw.whole(1, 250))
    arenas = draw.damaged(draw.numpy.integers(0, 3, (height, width)).astype(np.int32))
    return draw.do("genagent_metric", plan, arenas, draw.number(0, 3), draw.whole(1, 250))


def place(draw: Draw) -> Any:
    if draw.hostile():
        return draw.junk()
    return draw.whole(0, 7), draw.whole(0, 7) if draw.random.random() < 0.7 else 0


def use_metric(draw: Draw) -> None:
    chosen = metric(draw)
    n = draw.random.randint(0, 5)

    def perceives() -> None:
        p, q = (draw.damaged(draw.numpy.integers(0, 7, (n, 2)).astype(float)) for _ in "pq")
        draw.do("perceives", chosen, p, q, draw.number(0, 8))

    draw.attempt(
        [
            lambda: draw.do(
                "Metric.within",
                *(chosen, place(draw), place(draw), draw.number(0, 8), draw.number(0, 8)),
            ),
            lambda: draw.do("Metric.flaw", chosen, place(draw)),
            perceives,
        ],
        8,
    )


def rule_controller(draw: Draw, positions: np.ndarray, steps: int) -> Any:
    couple = draw.number(0, 3)
    block = inf if isinstance(couple, float) and couple == inf else draw.number(3, 5)
    if draw.random.random() < 0.1:
        couple = block = draw.random.choice([inf, -inf])
    options = {}
    if draw.random.random() < 0.3:
        options["steps"] = draw.one_of([draw.whole(0, steps) for _ in positions])
    if draw.random.random() < 0.3:
        options["check_moves"] = draw.flag()
    return draw.do(
        "make_controller",
        *(couple, block, metric(draw), draw.number(0, 2), draw.damaged(positions)),
        draw.whole(steps, steps),
        **options,
    )


def graph_controller(draw: Draw, agents: int, steps: int) -> Any:
    degrees = draw.numpy.integers(0, 3, agents * steps)
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    partners = draw.numpy.integers(0, agents, int(offsets[-1])).astype(np.int32)
    return draw.do(
        "make_graph_controller",
        *(draw.whole(agents, agents), draw.whole(steps, steps)),
        *(draw.damaged(offsets), draw.damaged(partners)),
    )


def value_controller(draw: Draw, agents: int, steps: int) -> Any:
    """In the rows of step 0 there are no writers: none is earlier."""
    degrees = draw.numpy.integers(0, 3, agents * steps)
    degrees[:agents] = 0
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    writers = draw.numpy.integers(0, agents, int(offsets[-1])).astype(np.int32)
    return draw.do(
        "make_value_controller",
        *(draw.whole(agents, agents), draw.whole(steps, steps)),
        *(draw.damaged(offsets), draw.damaged(writers), draw.damaged(np.ones_like(writers))),
    )


def controller_of(draw: Draw, positions: np.ndarray, steps: int) -> Any:
    kind = draw.random.random()
    if kind < 0.2:
        return graph_controller(draw, len(positions), steps)
    if kind < 0.4:
        return value_controller(draw, len(positions), steps)
    return rule_controller(draw, positions, steps)


def use_controller(draw: Draw) -> None:
    agents, steps = draw.random.randint(0, 6), draw.random.randint(0, 4)
    positions = draw.numpy.integers(0, 7, (agents, 2)).astype(float)
    if draw.random.random() < 0.4:
        positions[:, 1] = 0
    controller = controller_of(draw, positions, steps)
    ready: list[tuple[int, tuple[int, ...]]] = []

    def start() -> None:
        ready.extend(draw.do("Controller.start", controller))

    def commit() -> None:
        which = draw.random.randrange(len(ready) + 1)
        _, chosen = ready.pop(which) if which < len(ready) else (0, (0,))
        members = draw.damaged(np.array(chosen, np.int32)) if draw.hostile() else chosen
        stay = [tuple(positions[a]) if a < agents else (0, 0) for a in chosen]
        moved = [place(draw) if draw.hostile() else one for one in stay]
        ready.extend(draw.do("Controller.commit", controller, members, moved))

    draw.attempt([start], 1 if draw.random.random() < 0.9 else 0)
    draw.attempt(
        [
            *[commit] * 8,
            start,
            lambda: draw.do("Controller.blocked_by", controller),
            lambda: draw.do("Controller.clear_until", controller, draw.whole(0, agents)),
            lambda: draw.get("Controller.floor", controller),
            lambda: draw.do("Controller.validate", controller),
        ],
        30,
    )


def use_bench(draw: Draw) -> None:
    """A valid call takes a second: one among many that must be refused."""
    if draw.random.random() < 0.02:
        draw.do("bench_controller", 4.0, 5.0, draw.do("plane_metric", "chebyshev"), 10, 100_000, 1)
        return
    draw.hostility = 0.7
    size = draw.random.choice([(0, 5), (-1, 5), (5, 0), (5, -(2**31)), (2**31 - 1, 2**31 - 1)])
    agents, steps = (value if draw.hostile() else draw.junk() for value in size)
    draw.do(
        "bench_controller", draw.number(0, 5), draw.number(5, 9), metric(draw), agents, steps, 1
    )


def use_left_places(draw: Draw) -> None:
    places = draw.do("LeftPlaces", metric(draw), draw.number(1, 8))

    def change() -> Any:
        return [(draw.whole(0, 3), draw.whole(0, 9)) for _ in range(draw.random.randint(0, 2))]

    draw.attempt(
        [
            lambda: draw.do(
                "LeftPlaces.leave",
                *(places, draw.whole(0, 4), place(draw), draw.whole(0, 9), change()),
            ),
            lambda: draw.do(
                "LeftPlaces.has_left",
                *(places, place(draw), draw.number(0, 1), draw.whole(-1, 9)),
            ),
            lambda: draw.do(
                "LeftPlaces.unknown_to",
                *(places, draw.whole(0, 3), draw.one_of({}, {0: draw.whole(-1, 9)}), place(draw)),
                *(draw.number(0, 1), draw.one_of(None, draw.whole(-1, 9))),
            ),
        ],
        12,
    )
