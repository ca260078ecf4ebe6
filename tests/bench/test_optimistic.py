"""The rows of `metropolis bench optimistic`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metropolis.bench import optimistic
from metropolis.runtime.replays.modes import Risk
from metropolis.trace.parquet import write_trace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from tests.small_traces import small_trace


def a_day() -> Trace:
    trace = small_trace(3, agents=4, steps=30, edge=8, radius=2)
    return replace(trace, meta=replace(trace.meta, step_s=3600.0))


def test_a_row_for_each_stretch_and_number_of_instances() -> None:
    rows = list(optimistic.measure(a_day(), 0, 6, {"0": Risk(0.0), "1": Risk(1.0)}))
    assert [(row.stretch, row.instances) for row in rows] == [
        (stretch, instances) for stretch in ("busy", "quiet") for instances in (1, 2, 4, 8)
    ]
    for row in rows:
        assert row.agents == 6
        assert set(row.optimistic_sim_s) == set(row.waste) == {"0", "1"}
        assert row.waste["0"] <= row.waste["1"]


def test_the_longest_stretch_is_the_whole_trace() -> None:
    day, risk = a_day(), {"0": Risk(0.0)}
    hours = list(optimistic.measure(day, 0, 4, risk))
    rows = list(optimistic.measure(day, 0, 4, risk, (optimistic.LONGEST,), "chebyshev"))
    assert [row.instances for row in rows] == [1, 2, 4, 8]
    assert min(row.calls for row in rows) > 2 * max(row.calls for row in hours)


def test_a_metric_that_the_movement_breaks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "day.parquet"
    write_trace(a_day(), path)
    arguments = [str(path), "--longest", "--metric", "manhattan"]
    with pytest.raises(MetropolisError, match="max_velocity"):
        optimistic.command.main(arguments, standalone_mode=False)
