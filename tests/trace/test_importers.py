"""Movement from every format: equal to the trace it was made from; damage gets one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.trace.importers import import_recording
from metropolis.trace.schema import Trace, TraceMeta
from metropolis.types import MetropolisError
from tests.trace import recordings
from tests.trace.damage import assert_sentence, open_map
from tests.trace.recordings import DATE, FORMATS, dump, walkers, with_jump

Writer = Callable[[Trace, Path], Path]
by_format = pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)


@by_format
def test_every_format_is_read_as_it_was_recorded(write: Writer, tmp_path: Path) -> None:
    for seed, agents, steps in ((0, 3, 12), (1, 1, 1), (2, 12, 30)):
        trace = walkers(seed, agents, steps)
        imported = import_recording(write(trace, tmp_path / str(seed)), radius=4).trace
        np.testing.assert_array_equal(imported.positions, trace.positions)
        assert imported.positions.dtype == np.float32
        assert replace(imported.meta, name="", source="") == trace.meta
        assert len(imported.calls) == 0


@by_format
def test_options_override_the_file(write: Writer, tmp_path: Path) -> None:
    trace = walkers(3, 2, 5)
    start = datetime(2024, 1, 1, 6, 30)
    imported = import_recording(
        write(trace, tmp_path), radius=7, velocity=2, step_s=60, start=start, metric="euclidean"
    )
    meta = imported.trace.meta
    assert (meta.perception_radius, meta.max_velocity, meta.step_s, meta.start, meta.metric) == (
        7, 2, 60, start, "euclidean",
    )  # fmt: skip


def test_a_radius_that_nobody_gives(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match=r"day\.json: has no perception radius; .* --radius"):
        import_recording(recordings.tracks(walkers(0, 2, 3), tmp_path))


def test_environment_comes_before_movement(tmp_path: Path) -> None:
    """Environment files know where step 0 began; they count where they reach far enough."""
    trace = walkers(4, 3, 9)
    early = with_jump(trace.positions, 0, 1, (0, 0))
    early[0, 1] += (1, 0)
    moved = replace(trace, positions=early)
    folder = recordings.movement(moved, recordings.environment(moved, tmp_path))
    imported = import_recording(folder, radius=4).trace
    np.testing.assert_array_equal(imported.positions, early)
    for step in range(1, 9):
        (folder / "environment" / f"{step}.json").unlink()
    np.testing.assert_array_equal(import_recording(folder, radius=4).trace.positions, early)
    (folder / "environment" / "0.json").unlink()
    np.testing.assert_array_equal(
        import_recording(folder, radius=4).trace.positions, trace.positions
    )
    alone = import_recording(folder / "movement", radius=4).trace
    np.testing.assert_array_equal(alone.positions, trace.positions)


@pytest.mark.parametrize(("claimed_s", "step_s"), [(10, 10), (1800, 10), (30, 30)])
def test_the_runs_own_metadata(claimed_s: int, step_s: int, tmp_path: Path) -> None:
    trace = walkers(5, 2, 40)
    trace = replace(trace, meta=replace(trace.meta, start=datetime(2023, 6, 1)))
    path = recordings.master(trace, tmp_path)
    recordings.run_meta(trace, tmp_path, claimed_s, step_s)
    for source in (path, tmp_path):
        meta = import_recording(source, radius=4).trace.meta
        assert (meta.start, meta.step_s, meta.name) == (trace.meta.start, step_s, tmp_path.name)
    assert meta.start.strftime(DATE) == "June 01, 2023"


def damaged(write: Writer, edit: Callable[[Path], object], file: str = "") -> Writer:
    def writing(trace: Trace, folder: Path) -> Path:
        path = write(trace, folder)
        edit(path / file)
        return path

    return writing


def edited(write: Writer, edit: Callable[[Any], object], file: str = "") -> Writer:
    def edit_file(path: Path) -> None:
        content = json.loads(path.read_text())
        edit(content)
        dump(path, content)

    return damaged(write, edit_file, file)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


ADA = "Agent 0"
DAMAGE: dict[str, tuple[Writer, list[str]]] = {
    "truncated tracks": (damaged(recordings.tracks, cut), ["day.json, line 1", "truncated"]),
    "truncated gzip": (damaged(recordings.wrapped_tracks, cut), ["damaged gzip"]),
    "ragged tracks": (
        edited(recordings.tracks, lambda c: c[ADA].pop()),
        [f"'{ADA}'", "has 5 steps while others have 6", "step 5 is missing"],
    ),
    "no pair": (
        edited(recordings.tracks, lambda c: c[ADA].__setitem__(3, [1])),
        ["step 3", f"'{ADA}'", "[1]", "a pair [x, y]"],
    ),
    "null position": (
        edited(recordings.tracks, lambda c: c[ADA].__setitem__(3, None)),
        ["step 3", f"'{ADA}'", "None"],
    ),
    "NaN position": (
        edited(recordings.tracks, lambda c: c[ADA].__setitem__(3, [1, float("nan")])),
        ["step 3", f"'{ADA}'", "y is nan"],
    ),
    "text position": (
        edited(recordings.tracks, lambda c: c[ADA].__setitem__(3, ["a", 1])),
        ["step 3", f"'{ADA}'", "['a', 1]"],
    ),
    "quoted number": (
        edited(recordings.tracks, lambda c: c[ADA].__setitem__(3, ["1", 0])),
        ["step 3", f"'{ADA}'", "['1', 0]"],
    ),
    "truth in a column": (
        edited(recordings.columns, lambda c: c["x"][0].__setitem__(3, True)),
        ["step 3", f"'{ADA}'", "True"],
    ),
    "agent twice": (
        lambda trace, folder: text(folder / "a.json", '{"Ada": [[0, 0]], "Ada": [[9, 9]]}'),
        ["a.json", "the key 'Ada' occurs twice"],
    ),
    "lone surrogate": (
        lambda trace, folder: text(folder / "a.json", '{"\\ud800": [[0, 0]]}'),
        ["a.json", "a lone surrogate"],
    ),
    "huge position": (
        edited(recordings.tracks, lambda c: c[ADA].__setitem__(3, [1e300, 1])),
        ["step 3", f"'{ADA}'", "x is inf"],
    ),
    "null track": (
        edited(recordings.tracks, lambda c: c.update({ADA: None})),
        [f"'{ADA}'", "track is None", "list"],
    ),
    "empty tracks": (
        edited(recordings.tracks, lambda c: [c.update({name: []}) for name in c]),
        ["no positions"],
    ),
    "no recording": (edited(recordings.tracks, lambda c: c.clear()), ["not a movement", "shapes"]),
    "slip": (
        lambda trace, folder: text(
            folder / "a.json", '{"positions": {"Ada": [[0, 0]]}, "second_per_step": 5}'
        ),
        ["unknown field 'second_per_step'", "seconds_per_step"],
    ),
    "Parquet": (
        lambda trace, folder: text(folder / "a.parquet", "PAR1 and more"),
        ["is a Parquet file", "should be text"],
    ),
    "negative radius": (
        edited(recordings.columns, lambda c: c["hyper"].update(vision_r=-4)),
        ["perception_radius is -4", "at least 0"],
    ),
    "radius no number": (
        edited(recordings.columns, lambda c: c["hyper"].update(vision_r="far")),
        ["hyper.vision_r is 'far'"],
    ),
    "start": (edited(recordings.columns, lambda c: c.update(start="noon")), ["start is 'noon'"]),
    "column missing": (
        edited(recordings.columns, lambda c: c.pop("y")), ["y should be a list of 2 tracks"]
    ),
    "agent missing in a column": (
        edited(recordings.columns, lambda c: c["y"].pop()), ["y should be a list of 2 tracks"]
    ),
    "ragged columns": (
        edited(recordings.columns, lambda c: c["y"][1].pop()), [", y", "'Agent 1'", "has 5 steps"]
    ),
    "columns of unequal length": (
        edited(recordings.columns, lambda c: [t.pop() for t in c["y"]]), ["x has 6 steps and y 5"]
    ),
    "agents twice": (
        edited(recordings.columns, lambda c: c.update(agents=[ADA, ADA])), ["different names"]
    ),
    "master without a step": (
        edited(recordings.master, lambda c: c.pop("2")), ["step 2 is missing", "step 5"]
    ),
    "master without an agent": (
        edited(recordings.master, lambda c: (c["0"].pop(ADA), c["1"].update({ADA: {}}))),
        ["step 1", f"'{ADA}'", "missing at step 0"],
    ),
    "master without a tile": (
        edited(recordings.master, lambda c: c["0"][ADA].pop("movement")),
        ["step 0", f"'{ADA}'", "movement is missing"],
    ),
    "master with a bad tile": (
        edited(recordings.master, lambda c: c["0"][ADA].update(movement=[1, "b"])),
        ["step 0", f"'{ADA}'", "[1, 'b']"],
    ),
    "master with a null step": (
        edited(recordings.master, lambda c: c.update({"2": None})), ["step 2", "None", "object"]
    ),
    "master with another key for a step": (
        edited(recordings.master, lambda c: c.update({"007": {}})),
        ["step 6 is missing"],
    ),
    "master with a step twice": (
        edited(recordings.master, lambda c: c.update({"02": {}})), ["step 2 occurs twice"]
    ),
    "master with a step that is none": (
        edited(recordings.master, lambda c: c.update({"-1": {}})), ["'-1' is not a step"]
    ),
    "master without agents": (
        lambda trace, folder: dump(folder / "a.json", {"0": {}}), ["names no agents"]
    ),
    "run metadata of another kind": (
        lambda trace, folder: (
            recordings.master(trace, folder), dump(folder / "meta.json", [1])
        )[0],
        ["meta.json: is list", "JSON object"],
    ),
    "movement file missing": (
        damaged(recordings.movement, Path.unlink, "movement/3.json"),
        ["movement/3.json is missing", "step 5"],
    ),
    "first movement file missing": (
        damaged(recordings.movement, Path.unlink, "movement/0.json"),
        ["movement/0.json is missing"],
    ),
    "environment file missing": (
        damaged(recordings.environment, Path.unlink, "environment/3.json"),
        ["environment/3.json is missing"],
    ),
    "environment file twice": (
        damaged(recordings.environment, lambda p: dump(p, {}), "environment/03.json"),
        ["environment/3.json", "same step as 03.json"],
    ),
    "environment file cut": (
        damaged(recordings.environment, cut, "environment/3.json"),
        ["environment/3.json, line 1", "truncated"],
    ),
    "environment file of another kind": (
        damaged(recordings.environment, lambda p: dump(p, [1]), "environment/3.json"),
        ["environment/3.json: is list"],
    ),
    "agent missing in environment": (
        edited(recordings.environment, lambda c: c.pop(ADA), "environment/3.json"),
        ["environment/3.json", f"'{ADA}' is missing"],
    ),
    "agent new in environment": (
        edited(recordings.environment, lambda c: c.pop(ADA), "environment/0.json"),
        ["environment/1.json", f"'{ADA}' is new"],
    ),
    "agent missing in movement": (
        edited(recordings.movement, lambda c: c["persona"].pop(ADA), "movement/3.json"),
        ["movement/3.json", f"'{ADA}' is missing"],
    ),
    "movement without agents": (
        edited(recordings.movement, lambda c: c.pop("persona"), "movement/3.json"),
        ["movement/3.json", "every agent's movement"],
    ),
    "empty folder": (lambda trace, folder: folder, ["is a folder without recorded steps"]),
    "no file": (lambda trace, folder: folder / "none.json", ["none.json", "No such file"]),
    "binary file": (
        lambda trace, folder: binary(folder / "a.json"),
        ["byte 0 is not UTF-8"],
    ),
    "run metadata": (
        lambda trace, folder: (
            recordings.master(trace, folder),
            dump(folder / "meta.json", {"start_date": "today"}),
        )[0],
        ["meta.json", "start_date", "February 13, 2023"],
    ),
}  # fmt: skip


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def binary(path: Path) -> Path:
    path.write_bytes(b"\xff\xfe" * 20)
    return path


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_gets_one_sentence(kind: str, tmp_path: Path) -> None:
    write, expected = DAMAGE[kind]
    path = write(walkers(7, 2, 6), tmp_path)
    with pytest.raises(MetropolisError) as caught:
        import_recording(path, radius=None if "radius" in kind else 4)
    assert_sentence(caught.value, tmp_path, expected)


@given(
    write=st.sampled_from([recordings.master, recordings.wrapped_tracks, recordings.columns]),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_flipped_bytes_never_get_past_a_sentence(
    write: Writer, flips: list[tuple[float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(walkers(8, 2, 4), tmp_path_factory.getbasetemp() / "flipped")
    content = bytearray(path.read_bytes())
    for where, flip in flips:
        content[int(where * (len(content) - 1))] ^= flip
    path.write_bytes(content)
    try:
        import_recording(path, radius=4, jumps="clamp")
    except MetropolisError as error:
        assert_sentence(error, path, [])


def test_a_wall_under_a_recorded_agent(tmp_path: Path) -> None:
    trace = walkers(9, 2, 5)
    trace.positions[:] = (3, 3)
    trace.positions[4, 1] = (3, 4)
    path = recordings.tracks(trace, tmp_path)
    with pytest.raises(MetropolisError, match=r"step 4, agent 'Agent 1': .*\(3, 4\) is a wall"):
        import_recording(path, radius=4, map=open_map(9, 5))
    assert isinstance(import_recording(path, radius=4, map=open_map(9, 6)).trace.meta, TraceMeta)
