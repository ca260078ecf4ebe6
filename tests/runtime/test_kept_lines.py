"""Resuming below the end of a run: what lies behind is lost at the next append, not before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metropolis.llm.call_log import CallRecord
from metropolis.runtime.folder.calls_file import CallsFile, calls_by_step
from metropolis.runtime.folder.history import HistoryWriter, read_history

RUN = "0" * 16


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    path = tmp_path / "calls.jsonl"
    written = CallsFile(path, run=RUN)
    written.append([(step, 0, _call(step)) for step in range(5)])
    written.close()
    return path


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.jsonl"
    written = HistoryWriter(path, run=RUN)
    for step in range(5):
        written.append_line(b'{"step":%d}' % step, calls=1)
    written.close()
    return path


def test_reading_calls_loses_none(calls: Path) -> None:
    CallsFile(calls, keep=2, run=RUN).close()
    assert _steps_of(calls) == [0, 1, 2, 3, 4]


def test_calls_are_cut_off_at_the_next_step(calls: Path) -> None:
    resumed = CallsFile(calls, keep=2, run=RUN)
    resumed.append([(7, 0, _call(7))])
    resumed.append([(8, 0, _call(8))])
    resumed.close()
    assert _steps_of(calls) == [0, 1, 7, 8]
    assert resumed.tally.lines == 4


def test_calls_are_cut_off_at_the_next_step_without_calls(calls: Path) -> None:
    resumed = CallsFile(calls, keep=2, run=RUN)
    resumed.append([])
    resumed.close()
    assert _steps_of(calls) == [0, 1]


@pytest.mark.parametrize("keep", [0, 5])
def test_all_calls_or_none_are_kept(calls: Path, keep: int) -> None:
    resumed = CallsFile(calls, keep=keep, run=RUN)
    resumed.append([])
    resumed.close()
    assert _steps_of(calls) == list(range(keep))


@pytest.mark.parametrize(("keep", "tail"), [(4, -3), (5, None)])
def test_a_damaged_end_of_the_calls_is_cut_off_at_once(
    calls: Path, keep: int, tail: int | None
) -> None:
    calls.write_bytes(calls.read_bytes()[:tail] + b"damage")
    resumed = CallsFile(calls, keep=keep, run=RUN)
    resumed.close()
    assert resumed.mark.lines == keep
    assert not calls.read_bytes().endswith(b"damage")
    assert _steps_of(calls) == list(range(keep))


def test_reading_the_history_loses_no_step(history: Path) -> None:
    HistoryWriter(history, keep=2, run=RUN).close()
    assert _contents(history) == [0, 1, 2, 3, 4]


def test_steps_are_cut_off_at_the_next_one(history: Path) -> None:
    resumed = HistoryWriter(history, keep=2, run=RUN)
    resumed.append_line(b'{"step":7}', calls=0)
    resumed.close()
    assert _contents(history) == [0, 1, 7]
    assert resumed.calls == 2


@pytest.mark.parametrize("keep", [0, 5])
def test_all_steps_or_none_are_kept(history: Path, keep: int) -> None:
    HistoryWriter(history, keep=keep, run=RUN).close()
    assert _contents(history) == [0, 1, 2, 3, 4]
    resumed = HistoryWriter(history, keep=keep, run=RUN)
    resumed.append_line(b'{"step":7}', calls=0)
    resumed.close()
    assert _contents(history) == [*range(keep), 7]


def test_a_damaged_end_of_the_history_is_cut_off_at_once(history: Path) -> None:
    history.write_bytes(history.read_bytes() + b"damage")
    HistoryWriter(history, keep=5, run=RUN).close()
    assert not history.read_bytes().endswith(b"damage")
    assert _contents(history) == [0, 1, 2, 3, 4]


def _call(step: int) -> CallRecord:
    return CallRecord(f"f{step}", "m", (), float(step), step + 1.0, 3, 2)


def _steps_of(calls: Path) -> list[int]:
    """The steps of all calls, read to the end of the file."""
    return [step for step, own in calls_by_step(calls, RUN) for _ in own]


def _contents(history: Path) -> list[int]:
    return [json.loads(line.content)["step"] for line in read_history(history, RUN)]
