"""Positions and moments are what a direct reading of the history says, whole or while it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.line_file import LineFile, with_content
from metropolis.runtime.folder.history import HISTORY
from metropolis.runtime.folder.view_file import ViewFile
from metropolis.trace.schema import TraceMeta
from metropolis.types import MetropolisError
from metropolis.viewer.data import chunks
from metropolis.viewer.data.chunks import NoChunkError
from metropolis.viewer.data.history_steps import HistorySteps
from metropolis.world.appearance import Appearance, Look
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from tests.viewer.data.histories import Expected, worlds, write

Case = tuple[ViewFile, TraceMeta, list[StepRecord]]


def opened(path: Path, view: ViewFile, meta: TraceMeta, rows: int = 6) -> HistorySteps:
    with patch.object(chunks, "CHUNK_ROWS", rows):
        return HistorySteps(path, None, view, meta, {})


def check(found: HistorySteps, expected: Expected, agents: int, steps: int) -> None:
    per_chunk = found._chunk_steps
    assert found.steps == steps
    assert found.chunks == max(1, -(-steps // per_chunk))
    moments = []
    for number in range(found.chunks):
        part = np.frombuffer(found.positions(number), np.float32).reshape(-1, agents, 2).tolist()
        first = number * per_chunk
        expected_part = expected.positions[first : first + per_chunk + 1]
        assert part == [[[*at] for at in of] for of in expected_part]
        content = json.loads(found.moments(number))
        if first < steps:
            for agent, look in enumerate(expected.looks[first]):
                shown: dict[str, Any] = content["now"][f"{agent}"]
                assert shown.get("label", "") == look.label
                assert shown.get("asleep", False) is look.asleep
        assert all(first <= moment[0] < first + per_chunk for moment in content["moments"])
        moments += content["moments"]
    assert moments == expected.moments
    for number in (-1, found.chunks):
        with pytest.raises(NoChunkError):
            found.positions(number)
        with pytest.raises(NoChunkError):
            found.moments(number)


@settings(max_examples=60)
@given(worlds(), st.integers(1, 12), st.lists(st.integers(0, 9), max_size=3))
def test_chunks_equal_the_history_while_it_grows(
    tmp_path_factory: pytest.TempPathFactory, case: Case, rows: int, stops: list[int]
) -> None:
    view, meta, steps = case
    path = tmp_path_factory.mktemp("run") / "history.jsonl"
    write(path, [])
    found = opened(path, view, meta, rows)
    found.refresh()
    check(found, Expected(view, meta, []), len(meta.agents), 0)
    for stop in sorted({*stops, len(steps)}):
        before = found.steps
        write(path, steps[: max(stop, before)], before)
        end = min(max(stop, before), len(steps))
        changed = found.refresh()
        assert changed == set(
            range(before // found._chunk_steps, found.chunks) if end > before else ()
        )
        check(found, Expected(view, meta, steps[:end]), len(meta.agents), end)


@given(worlds().filter(lambda case: len(case[2]) > 2), st.data())
@settings(max_examples=15)
def test_a_run_that_resumes_repeats_its_last_steps(
    tmp_path_factory: pytest.TempPathFactory, case: Case, data: st.DataObject
) -> None:
    view, meta, steps = case
    path = tmp_path_factory.mktemp("run") / "history.jsonl"
    write(path, steps)
    found = opened(path, view, meta)
    found.refresh()
    end = data.draw(st.integers(1, len(steps) - 1))
    write(path, steps[:end], data.draw(st.integers(0, end - 1)))
    found.refresh()
    check(found, Expected(view, meta, steps[:end]), len(meta.agents), end)


def _three_steps() -> Case:
    meta = TraceMeta("w", ("a",), 1.0, 1.0)
    view = ViewFile(
        run="",
        mode="lockstep",
        simulated=True,
        target=3,
        appearance=Appearance(),
        beginning=((0.0, 0.0),),
        looks=(Look(),),
    )
    steps = [
        StepRecord(step, {}, {"a": Entity("a", (step + 1, 0), "agent", {})}, [])
        for step in range(3)
    ]
    return view, meta, steps


def test_a_damaged_history_ends_before_the_damage(tmp_path: Path) -> None:
    view, meta, steps = _three_steps()
    path = tmp_path / "history.jsonl"
    write(path, steps)
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"at":[2.0', b'"at":[5.0'))
    found = opened(path, view, meta)
    found.refresh()
    assert found.steps == 1
    assert "line 3: is damaged" in (found.damage or "")
    path.write_bytes(text[:-4])  # the last line is being written
    found = opened(path, view, meta)
    found.refresh()
    assert (found.steps, found.damage) == (2, None)


def test_a_history_that_was_removed(tmp_path: Path) -> None:
    view, meta, steps = _three_steps()
    path = tmp_path / "history.jsonl"
    write(path, steps)
    found = opened(path, view, meta)
    found.refresh()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        found.refresh()
    with pytest.raises(FileNotFoundError):
        found.positions(0)


def test_an_edit_shows_from_the_step_of_the_branch_on(tmp_path: Path) -> None:
    view, meta, steps = _three_steps()
    steps[2] = StepRecord(2, {}, {}, [])
    path = tmp_path / "history.jsonl"
    write(path, steps)
    moved = Entity("a", (7, 7), "agent", {"doing": "nothing"})
    found = HistorySteps(path, None, view, meta, {2: [moved]})
    found.refresh()
    positions = np.frombuffer(found.positions(0), np.float32).reshape(-1, 2)
    assert positions.tolist() == [[0, 0], [1, 0], [7, 7], [7, 7]]
    assert json.loads(found.moments(0))["moments"] == [[2, 0, "does", "nothing", None]]


def test_a_line_that_is_no_step(tmp_path: Path) -> None:
    view, meta, steps = _three_steps()
    path = tmp_path / "history.jsonl"
    with pytest.raises(MetropolisError):
        write(path, [StepRecord(0, {}, {"a": Entity("a", (1, 1), "agent", {"x": "\ud800"})}, [])])
    write(path, steps)
    file = LineFile(path, HISTORY, None)
    last = [*file.read()][-1]
    file.cut(last)
    file.append([with_content(b'{"writes":{"a":{"at":"here"}}}', b'"calls":0,')])
    file.close()
    found = opened(path, view, meta)
    found.refresh()
    assert found.steps == 3
    assert "step 3 cannot be read" in (found.damage or "")
