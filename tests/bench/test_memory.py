"""`metropolis bench memory`: it reports the peak memory of whole processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metropolis.bench import memory, python_command
from metropolis.bench.memory import Measured, measure
from metropolis.types import MetropolisError

STEPS_A_DAY = 10


def run_bench(*arguments: str) -> str:
    found = CliRunner().invoke(memory.command, ["--steps-a-day", f"{STEPS_A_DAY}", *arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def lines(file: Path) -> int:
    """Count the lines without the first, which names the run."""
    return len(file.read_bytes().splitlines()) - 1


def test_the_table_and_the_object_report_the_same_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[Measured] = []

    def keep(days: int, steps_a_day: int, options: Any, folder: Path) -> Measured:
        runs.append(measure(days, steps_a_day, options, folder))
        run = folder / f"{days}"
        assert lines(run / "history.jsonl") == days * STEPS_A_DAY
        assert lines(run / "calls.jsonl") == runs[-1].calls
        return runs[-1]

    monkeypatch.setattr(memory, "measure", keep)
    content = json.loads(run_bench("--days", "3", "--json"))
    assert content["runs"] == [asdict(run) for run in runs]
    assert content["ratio"] == runs[1].peak_mb / runs[0].peak_mb
    assert [run.days for run in runs] == [1, 3]
    assert 0 < runs[0].calls < runs[1].calls
    assert all(30 < run.peak_mb < 1000 for run in runs)
    assert all(run.wall_s > 0 for run in runs)

    again = iter(runs)
    monkeypatch.setattr(memory, "measure", lambda *_: next(again))
    head, *rows, _, last = run_bench("--days", "3").splitlines()
    assert re.split(r"  +", head.strip()) == ["days", "calls", "peak MB", "wall s"]
    for row, run in zip(rows, content["runs"], strict=True):
        assert row.split() == [
            f"{run['days']}",
            f"{run['calls']:,}",
            f"{run['peak_mb']:.1f}",
            f"{run['wall_s']:.1f}",
        ]
    ratio, more = re.findall(r"-?\d+(?:\.\d+)?", last)
    assert ratio == f"{content['ratio']:.3f}"
    first, second = content["runs"]
    grown = (second["peak_mb"] - first["peak_mb"]) * 1e6 / (second["calls"] - first["calls"])
    assert more == f"{grown:.0f}"


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the program to run instead of metropolis."""
    return lambda code: monkeypatch.setattr(memory, "METROPOLIS", python_command(code))


def test_the_peak_is_that_of_the_process_and_not_of_its_parent(
    standing_in: Callable[[str], None], tmp_path: Path
) -> None:
    mine = b"1" * 500_000_000
    standing_in("import time; time.sleep(0.3); print('{\"calls\": 7}')")
    small = measure(1, STEPS_A_DAY, [], tmp_path)
    assert (small.days, small.calls) == (1, 7)
    assert 1 < small.peak_mb < 100 < len(mine) / 1e6
    assert small.wall_s > 0.3
    standing_in("a = b'1' * 200_000_000; del a; print('{\"calls\": 7}')")
    large = measure(2, STEPS_A_DAY, [], tmp_path)
    assert 200 < large.peak_mb < 300


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_a_failed_run_is_not_measured(
    standing_in: Callable[[str], None], tmp_path: Path, code: str, status: int
) -> None:
    standing_in(code)
    with pytest.raises(MetropolisError, match=rf"^a run of 2 days ended with status {status}$"):
        measure(2, STEPS_A_DAY, [], tmp_path)
