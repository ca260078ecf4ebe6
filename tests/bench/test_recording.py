"""`metropolis bench recording`: runs with and without a timeline, in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from metropolis.bench import recording
from metropolis.bench.recording import Work, measure, replayed, town
from metropolis.timeline.reader import read_timeline
from metropolis.trace.parquet import read_trace, write_trace
from tests.small_traces import small_trace


def test_the_two_kinds_of_runs_take_turns() -> None:
    order: list[bool] = []

    def work(folder: Path | None) -> int:
        order.append(folder is not None)
        if folder is not None:
            (folder / "calls-0.arrows").write_bytes(b"12345")
        return 7

    counted: list[int] = []
    found = measure("it", (3, 4), work, 2, counted.append)
    assert order == [True, False, False, True]
    assert counted == [1] * 4
    assert (found.name, found.agents, found.steps, found.calls) == ("it", 3, 4, 7)
    assert found.files_bytes == 5


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file."""
    small = small_trace(1, agents=4, steps=5, edge=6, radius=2)
    write_trace(small, tmp_path / "small.parquet")
    return tmp_path / "small.parquet"


def test_what_is_measured_records(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "replay").mkdir()
    calls = len(read_trace(trace).calls)
    assert replayed(trace)(tmp_path / "replay") == replayed(trace)(None) == calls
    assert len(read_timeline(tmp_path / "replay" / recording.MODE).executions) == 20
    assert town(3, "memory")(tmp_path / "town") == town(3, "memory")(None)
    assert len(read_timeline(tmp_path / "town").executions) == 3 * recording.TOWN_AGENTS


def test_the_table_and_the_objects_are_the_same(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works(_: int) -> Iterator[tuple[str, tuple[int, int], Work]]:
        yield "replay", (4, 5), replayed(trace)

    monkeypatch.setattr(recording, "_works", works)
    ran = CliRunner().invoke(recording.command, ["--repetitions", "1", "--json"])
    (row,) = json.loads(ran.stdout)
    assert row["more"] == row["recorded_cpu_s"] / row["cpu_s"] - 1
    ran = CliRunner().invoke(recording.command, ["--repetitions", "1"])
    assert f"{row['files_bytes'] / 20:.1f}" in ran.stdout.splitlines()[1]
