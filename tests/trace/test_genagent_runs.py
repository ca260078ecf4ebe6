"""Runs of Generative Agents that begin in the day, pause, or place people who take no part."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from metropolis.trace.importers import import_recording
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from tests.trace import recordings
from tests.trace.recordings import dump, walkers

Writer = Callable[[Trace, Path], Path]


@pytest.mark.parametrize(("step", "begun"), [(40, 10), (0, 11)])
def test_a_run_that_begins_in_the_day(step: int, begun: int, tmp_path: Path) -> None:
    """`step` is that of meta.json at `curr_time`, eleven o'clock."""
    path = recordings.master(walkers(5, 2, 40), tmp_path)
    clock = {"start_date": "June 01, 2023", "curr_time": "June 01, 2023, 11:00:00"}
    dump(tmp_path / "meta.json", clock | {"sec_per_step": 90, "step": step})
    meta = import_recording(path, radius=4).trace.meta
    assert (meta.start, meta.step_s) == (datetime(2023, 6, 1, begun), 90)


def test_movement_knows_the_time_best(tmp_path: Path) -> None:
    """The run paused for a night after step 1; its meta.json has another year."""
    trace = walkers(5, 2, 5)
    root = recordings.movement(trace, recordings.environment(trace, tmp_path))
    for step, clock in enumerate(["10:00:00", "10:00:20", "23:00:00", "23:00:20", "23:00:40"]):
        path = root / "movement" / f"{step}.json"
        content = json.loads(path.read_text())
        content["meta"] = {"curr_time": f"June 01, 2023, {clock}"}
        dump(path, content)
    recordings.run_meta(trace, root / "reverie", 10, 10)
    meta = import_recording(root, radius=4).trace.meta
    assert (meta.start, meta.step_s) == (datetime(2023, 6, 1, 10), 20)


@pytest.mark.parametrize("write", [recordings.environment, recordings.movement])
def test_people_who_take_no_part_are_ignored(write: Writer, tmp_path: Path) -> None:
    trace = walkers(4, 3, 9)
    root = write(trace, tmp_path)
    at = {name: {"x": x, "y": y} for name, (x, y) in recordings.tiles(trace, 0).items()}
    dump(root / "environment" / "0.json", {"Nobody": {"x": 1, "y": 2}} | at)
    imported = import_recording(root, radius=4)
    assert imported.trace.meta.agents == trace.meta.agents
    assert imported.recording.surplus == ("Nobody",)
    np.testing.assert_array_equal(imported.trace.positions, trace.positions)


def test_gaps_that_movement_does_not_have(tmp_path: Path) -> None:
    trace = walkers(4, 3, 9)
    root = recordings.movement(trace, recordings.environment(trace, tmp_path))
    (root / "environment" / "5.json").unlink()
    np.testing.assert_array_equal(import_recording(root, radius=4).trace.positions, trace.positions)
    (root / "movement" / "3.json").unlink()
    with pytest.raises(MetropolisError, match=r"environment/5\.json is missing"):
        import_recording(root, radius=4)


def test_the_radius_is_the_largest_of_the_people(tmp_path: Path) -> None:
    root = recordings.environment(walkers(4, 3, 9), tmp_path)
    with pytest.raises(MetropolisError, match="has no perception radius"):
        import_recording(root)
    for name, scratch in (("a", {"vision_r": 8}), ("b", {"vision_r": 5}), ("c", [])):
        dump(root / "personas" / name / "bootstrap_memory" / "scratch.json", scratch)
    assert import_recording(root).trace.meta.perception_radius == 8
    assert import_recording(root, radius=3).trace.meta.perception_radius == 3
