"""Walls as lengths of runs, areas and objects as boxes, graphs as edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from metropolis.maps.map import GridMap
from metropolis.rules.metrics import EUCLIDEAN, Hops
from metropolis.trace.metadata import graph_to_json
from metropolis.viewer.data.hearing import perceivers
from metropolis.viewer.data.place import map_of

SHAPE = (4, 5)


def layers(most: int) -> st.SearchStrategy[np.ndarray]:  # type: ignore[type-arg]
    return arrays(np.int32, SHAPE, elements=st.integers(0, most))


@given(arrays(np.bool_, SHAPE), layers(2), layers(2))
def test_maps(walls: np.ndarray, arenas: np.ndarray, objects: np.ndarray) -> None:  # type: ignore[type-arg]
    grid = GridMap("m", walls, arenas, ("", "<b>", "é"), objects, ("", "bed", "oven"))
    found = map_of(grid)
    assert (found["width"], found["height"]) == (5, 4)
    for row, runs in zip(walls, found["walls"], strict=True):
        drawn = [number % 2 == 1 for number, length in enumerate(runs) for _ in range(length)]
        assert drawn == row.tolist()
        assert all(runs[1:])
    for number, name in ((1, "<b>"), (2, "é")):
        ys, xs = np.nonzero(arenas == number)
        boxes = [box for box in found["areas"] if box["name"] == name]
        expected = (
            {"name": name, "x0": xs.min(), "y0": ys.min(), "x1": xs.max(), "y1": ys.max()}
            if len(xs)
            else None
        )
        assert boxes == ([expected] if expected else [])
    covered = np.zeros(SHAPE, np.int32)
    for box in found["objects"]:
        part = objects[box["y0"] : box["y1"] + 1, box["x0"] : box["x1"] + 1]
        assert (part == ("", "bed", "oven").index(box["name"])).any()
        covered[box["y0"] : box["y1"] + 1, box["x0"] : box["x1"] + 1] += 1
    assert (covered[objects > 0] > 0).all()


def test_graphs() -> None:
    assert graph_to_json(((1, 2), (0,), (0,))) == {"nodes": 3, "edges": [(0, 1), (0, 2)]}


@given(st.lists(st.tuples(*[st.floats(-9, 9, width=32)] * 2), min_size=1), st.floats(0, 9))
def test_who_perceives_in_the_plane(at: list[tuple[float, float]], radius: float) -> None:
    found = perceivers(EUCLIDEAN, radius, at[0], np.array(at, np.float32))
    assert found == [
        agent for agent, place in enumerate(at) if EUCLIDEAN.perceives(place, at[0], radius)
    ]


@pytest.mark.parametrize(("radius", "agents"), [(0, [1]), (1, [0, 1]), (2, [0, 1, 2])])
def test_who_perceives_in_a_graph(radius: float, agents: list[int]) -> None:
    chain = Hops([[1], [0, 2], [1, 3], [2]])
    positions = np.array([[1, 0], [0, 0], [2, 0], [3, 0]], np.float32)
    assert perceivers(chain, radius, (0.0, 0.0), positions) == agents
