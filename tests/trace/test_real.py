"""Importers on real recordings, where they are at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metropolis.maps.map import read_genagent_map
from metropolis.trace.importers import import_recording
from metropolis.trace.importers.calls import import_calls
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.trace.validate import jumps
from metropolis.types import MetropolisError
from tests.trace.damage import assert_same

SHARED = Path(__file__).parents[3] / "shared" / "data"
AGENTS = {
    "aw25_day": 25,
    "ga10_race_1": 10,
    "ga10_village_1": 10,
    "ga10_village_2": 10,
    "ga25_zh_morning": 25,
    "ga3_crc_test23": 3,
    "ga3_july1": 3,
}
JUMPS = {"ga25_zh_morning": 48, "ga10_village_1": 1}
CALLS = {"aw3_logged_calls": "aw25_day"} | {
    f"{name}.derived_calls": name for name in AGENTS if name.startswith("ga")
}

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the real recordings are not here")


@pytest.mark.parametrize("name", AGENTS)
def test_movement(name: str) -> None:
    path = SHARED / "movement" / f"{name}.json.gz"
    map = read_genagent_map(SHARED / "smallville")
    imported = import_recording(path, map=map, jumps="clamp")
    trace = imported.trace
    assert trace.agents == AGENTS[name]
    assert trace.meta.step_s == 10
    assert trace.meta.perception_radius == (4 if name == "aw25_day" else 8)
    assert not jumps(trace.positions, replace(trace.meta, metric="manhattan")).any()
    if name not in JUMPS:
        assert imported.clamped == 0
        np.testing.assert_array_equal(import_recording(path).trace.positions, trace.positions)
        return
    assert imported.clamped > 0
    more = JUMPS[name] - 1
    with pytest.raises(MetropolisError, match=rf"and {more} more" if more else "distance of 2;"):
        import_recording(path)


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, tmp_path: Path) -> None:
    movement = import_recording(SHARED / "movement" / f"{CALLS[name]}.json.gz", jumps="clamp").trace
    trace = import_calls(SHARED / "calls" / f"{name}.csv.gz", movement)
    assert trace.meta.calls_origin == ("recorded" if name.startswith("aw3") else "derived")
    assert len(trace.calls) > 900
    assert (np.diff(trace.calls.parent_offsets) <= 1).all()
    write_trace(trace, tmp_path / "a.parquet")
    assert_same(read_trace(tmp_path / "a.parquet"), trace)


def test_map() -> None:
    map = read_genagent_map(SHARED / "smallville")
    assert (map.width, map.height, int((~map.walls).sum())) == (140, 100, 11_936)
    assert len(map.arena_names) == 64
    assert len(map.object_names) == 47
    assert "Hobbs Cafe: cafe" in map.arena_names
