"""Maps: GenAgent's matrices, and walking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from metropolis.maps.map import GridMap, read_genagent_map
from metropolis.types import MetropolisError
from tests.trace.damage import assert_sentence


def matrices(root: Path, *, one_line: bool = True) -> Path:
    """A map of 4 x 3 tiles: a wall in the corner, a cafe with a counter."""
    layers = {
        "collision": [[32125, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        "arena": [[0, 0, 7, 8], [0, 0, 7, 8], [0, 0, 0, 0]],
        "game_object": [[0, 0, 0, 5], [0, 0, 0, 0], [0, 0, 0, 0]],
    }
    blocks = {
        "arena": "7, the Ville, Hobbs Cafe, cafe\n8, the Ville, Hobbs Cafe, kitchen \n\n9, a, b, c",
        "game_object": "5, the Ville, <all>, counter",
    }
    for folder in ("maze", "special_blocks"):
        (root / folder).mkdir(parents=True)
    for layer, rows in layers.items():
        lines = [", ".join(map(str, row)) for row in rows]
        text = ", ".join(lines) if one_line else "\n".join(lines) + "\n"
        (root / "maze" / f"{layer}_maze.csv").write_text(text)
    for layer, text in blocks.items():
        (root / "special_blocks" / f"{layer}_blocks.csv").write_text(text)
    size = {"world_name": "the ville", "maze_width": 4, "maze_height": 3}
    (root / "maze_meta_info.json").write_text(json.dumps(size))
    return root


@pytest.mark.parametrize("one_line", [True, False])
def test_matrices_make_a_map(one_line: bool, tmp_path: Path) -> None:
    map = read_genagent_map(matrices(tmp_path, one_line=one_line))
    assert (map.name, map.width, map.height) == ("the ville", 4, 3)
    assert np.argwhere(map.walls).tolist() == [[0, 0]]
    assert map.arena_names == ("", "Hobbs Cafe: cafe", "Hobbs Cafe: kitchen")
    assert map.arenas.tolist() == [[0, 0, 1, 2], [0, 0, 1, 2], [0, 0, 0, 0]]
    assert map.object_names == ("", "counter")
    assert map.objects.dtype == np.int32


def test_maps_can_be_compared(tmp_path: Path) -> None:
    map = read_genagent_map(matrices(tmp_path))
    other = replace(map, name="another")
    assert map != other
    assert {map: 1}[map] == 1


def test_negative_ids_mean_empty(tmp_path: Path) -> None:
    """In such layers 0 is the first tile of a tile set."""
    root = matrices(tmp_path)
    for path in (root / "maze").iterdir():
        path.write_text(path.read_text().replace("0", "-1"))
    path = root / "maze" / "collision_maze.csv"
    ids = path.read_text().split(", ")
    path.write_text(", ".join([*ids[:-1], "0"]))
    map = read_genagent_map(root)
    assert np.argwhere(map.walls).tolist() == [[0, 0], [2, 3]]
    assert map.arenas.tolist() == [[0, 0, 1, 2], [0, 0, 1, 2], [0, 0, 0, 0]]


@pytest.mark.parametrize("wall", [32125, 7])
def test_a_map_without_a_free_tile(wall: int, tmp_path: Path) -> None:
    """Only the project's own id is a wall if all tiles have one."""
    root = matrices(tmp_path)
    path = root / "maze" / "collision_maze.csv"
    path.write_text(", ".join(["32125"] + [f"{wall}"] * 11))
    if wall == 7:
        assert np.argwhere(read_genagent_map(root).walls).tolist() == [[0, 0]]
        return
    with pytest.raises(MetropolisError, match=r"collision_maze\.csv: has a wall on every tile"):
        read_genagent_map(root)


def write(file: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / file).write_text(text)


DAMAGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no size": (lambda root: (root / "maze_meta_info.json").unlink(), ["maze_meta_info.json"]),
    "damaged size": (write("maze_meta_info.json", "{"), ["maze_meta_info.json", "maze_width"]),
    "no tiles": (
        write("maze_meta_info.json", '{"world_name": "a", "maze_width": 0, "maze_height": 3}'),
        ["maze_meta_info.json", "at least 1"],
    ),
    "no layer": (lambda root: (root / "maze" / "arena_maze.csv").unlink(), ["arena_maze.csv"]),
    "short layer": (
        write("maze/arena_maze.csv", "0, 0, 7"), ["arena_maze.csv", "holds 3 ids", "4 x 3 = 12"]
    ),
    "no id": (
        write("maze/collision_maze.csv", "0, 0\n0, wall"),
        ["collision_maze.csv, line 2, column 2", "'wall'"],
    ),
    "no text": (
        lambda root: (root / "maze" / "arena_maze.csv").write_bytes(b"\xff"), ["arena_maze.csv"]
    ),
    "no block": (
        write("special_blocks/arena_blocks.csv", "7, a, b, c\nx, a, b, c"),
        ["arena_blocks.csv, line 2", "block id"],
    ),
    "arena cut off": (
        write("special_blocks/arena_blocks.csv", "7, the Ville, Hobbs Cafe, cafe"),
        ["arena_blocks.csv", "does not name the id 8 of maze/arena_maze.csv"],
    ),
    "objects cut off": (
        write("special_blocks/game_object_blocks.csv", ""),
        ["game_object_blocks.csv", "the id 5 of maze/game_object_maze.csv"],
    ),
    "no name": (
        write("special_blocks/game_object_blocks.csv", "5"), ["game_object_blocks.csv, line 1"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_matrices_get_one_sentence(kind: str, tmp_path: Path) -> None:
    damage, expected = DAMAGE[kind]
    damage(matrices(tmp_path))
    with pytest.raises(MetropolisError) as caught:
        read_genagent_map(tmp_path)
    assert_sentence(caught.value, tmp_path, expected)


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 7), st.floats(0, 0.6))
@settings(max_examples=100, deadline=None)
def test_walks_are_shortest(seed: int, width: int, height: int, walled: float) -> None:
    draw = np.random.default_rng(seed)
    walls = draw.random((height, width)) < walled
    none = np.zeros((height, width), np.int32)
    map = GridMap("random", walls, none, ("",), none, ("",))
    free = [(int(x), int(y)) for y, x in np.argwhere(~walls)]
    if not free:
        return
    start, goal = (free[i] for i in draw.integers(0, len(free), 2))
    beside = csr_matrix(
        [[abs(a - c) + abs(b - d) == 1 for c, d in free] for a, b in free], dtype=float
    )
    shortest = dijkstra(beside, indices=free.index(start), unweighted=True)[free.index(goal)]
    walk = map.walk(start, goal)
    if walk is None:
        assert np.isinf(shortest)
        return
    assert len(walk) == shortest
    path = [start, *walk]
    assert path[-1] == goal
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in zip(path, walk, strict=False))
    assert not any(walls[y, x] for x, y in walk)
    assert map.walk(start, goal, len(walk) + 0.5) == walk
    assert not walk or map.walk(start, goal, len(walk) - 0.5) is None


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("walls", np.zeros((2, 3), np.int32), "walls have the shape (2, 3) and the type int32"),
        ("arenas", np.zeros((3, 2), np.int32), "arenas have the shape (3, 2); it should be that"),
        ("arenas", np.full((2, 3), 2, np.int32), "arenas are 2 to 2; they should be indices into"),
        ("objects", np.full((2, 3), -1, np.int32), "objects are -1 to -1; they should be indices"),
    ],
)
def test_layers_that_do_not_fit_are_refused(field: str, value: Any, sentence: str) -> None:
    nothing = np.zeros((2, 3), np.int32)
    fit = GridMap("m", np.zeros((2, 3), np.bool_), nothing, ("", "hall"), nothing, ("",))
    with pytest.raises(MetropolisError, match=re.escape(f"the map 'm': {sentence}")):
        replace(fit, **{field: value})
