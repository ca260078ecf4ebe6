"""Jumps: refused with their number, or clamped to a walk after the recorded track."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.trace.importers import import_recording
from metropolis.trace.schema import Trace
from metropolis.trace.validate import jumps
from metropolis.types import MetropolisError
from tests.trace import recordings
from tests.trace.damage import open_map
from tests.trace.recordings import FORMATS, dump, walkers, with_jump

Writer = Callable[[Trace, Path], Path]
by_format = pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)


@by_format
def test_jumps_are_refused_with_their_number(write: Writer, tmp_path: Path) -> None:
    trace = walkers(6, 3, 12)
    trace.positions[:] = trace.positions[0]
    jumped = with_jump(with_jump(trace.positions, 5, 1, (3, 4)), 8, 2, (0, 2))
    path = write(replace(trace, positions=jumped), tmp_path)
    with pytest.raises(MetropolisError) as caught:
        import_recording(path, radius=4)
    message = str(caught.value)
    walked = write not in (recordings.tracks, recordings.wrapped_tracks)
    distance = "manhattan distance of 7" if walked else "chebyshev distance of 4"
    for part in (str(path), "step 5", "'Agent 1'", distance, "1 more jump)", "--jumps clamp"):
        assert part in message, message
    import_recording(path, radius=4, velocity=7)


@given(seed=st.integers(0, 2**32 - 1), velocity=st.integers(1, 3), mapped=st.booleans())
@settings(max_examples=60, deadline=None)
def test_clamped_agents_walk_and_catch_up(
    seed: int, velocity: int, mapped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = np.random.default_rng(seed)
    trace = walkers(seed, 3, 60)
    trace.positions[:] = np.clip(trace.positions, 0, 17)
    trace.positions[int(draw.integers(1, 20)) :, 0] = draw.integers(0, 18, 2)
    map = open_map(20, 20) if mapped else None
    imported = import_recording(
        recordings.columns(trace, tmp_path_factory.getbasetemp() / "clamped"),
        velocity=velocity,
        map=map,
        jumps="clamp",
    )
    clamped = imported.trace.positions
    assert not jumps(clamped, replace(imported.trace.meta, metric="manhattan")).any()
    assert imported.clamped == (clamped != trace.positions).any(axis=2).sum()
    np.testing.assert_array_equal(clamped[0], trace.positions[0])
    np.testing.assert_array_equal(clamped[:, 1:], trace.positions[:, 1:])
    np.testing.assert_array_equal(clamped[-1], trace.positions[-1])


def test_clamping_goes_round_walls(tmp_path: Path) -> None:
    """A wall at x = 2 leaves one gap, at y = 4; the agent recorded to pass it walks round."""
    map = open_map(6, 6)
    map.walls[:4, 2] = True
    track = [[1, 0]] + [[3, 0]] * 12
    path = dump(tmp_path / "leap.json", {"positions": {"Ada": track}, "perception_radius": 4})
    positions = import_recording(path, map=map, velocity=1, jumps="clamp").trace.positions[:, 0]
    assert [4.0 in tile for tile in positions.tolist()].index(True) == 4
    assert positions[-2].tolist() == positions[-1].tolist() == [3, 0]
    map.walls[4, 2] = True
    with pytest.raises(MetropolisError, match=r"'Ada', step 1: there is no path from \(1, 0\)"):
        import_recording(path, map=map, velocity=1, jumps="clamp")


def test_who_stands_on_a_wall_stands_beside_it(tmp_path: Path) -> None:
    map = open_map(6, 6)
    map.walls[1:3, 2] = True
    track = [[1, 1], [2, 1], [2, 2], [2, 3], [2, 3]]
    path = dump(tmp_path / "walk.json", {"positions": {"Ada": track}, "perception_radius": 4})
    with pytest.raises(MetropolisError, match=r"is a wall of the map; .*; with --jumps clamp"):
        import_recording(path, map=map, velocity=1)
    imported = import_recording(path, map=map, velocity=1, jumps="clamp")
    assert imported.trace.positions[:, 0].tolist() == [[1, 1], [1, 1], [1, 2], [2, 3], [2, 3]]
    assert imported.clamped == 2


def test_a_leap_across_the_world_takes_no_more_room_than_a_short_one(tmp_path: Path) -> None:
    path = dump(tmp_path / "leap.json", {"Ada": [[0, 0]] + [[-(10**12), 7]] * 5})
    positions = import_recording(path, radius=2, velocity=2, jumps="clamp").trace.positions
    assert positions[:, 0].tolist() == [[-2 * step, 0] for step in range(6)]


def test_tracks_between_tiles_are_pursued(tmp_path: Path) -> None:
    track = [[0.5, 0.5]] + [[4.5, 0.5]] * 5
    path = dump(tmp_path / "leap.json", {"Ada": track})
    positions = import_recording(path, radius=2, velocity=1.5, jumps="clamp").trace.positions
    assert positions[:, 0, 0].tolist() == [0.5, 2, 3.5, 4.5, 4.5, 4.5]
