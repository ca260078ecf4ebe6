"""Memories at a step: from the first checkpoint that has them, without later ones."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from metropolis.runtime.folder.checkpoint import Checkpoint, Checkpoints
from metropolis.trace.schema import TraceMeta
from metropolis.viewer.data import minds
from metropolis.viewer.data.chunks import NoChunkError
from metropolis.viewer.data.minds import Minds
from metropolis.world.appearance import Memories

META = TraceMeta("w", ("Ada", "Bo"), 1, 1, step_s=10.0, start=datetime(2023, 2, 13, 6))
START_S = 6 * 3600


def memory(step: int, text: Any = "x", **more: Any) -> dict[str, Any]:
    return {"text": text, "kind": "event", "made": START_S + 10 * step, **more}


def opened(tmp_path: Path, memories: Memories | None, at: dict[int, Any]) -> Minds:
    kept = Checkpoints(tmp_path / "checkpoints", "0" * 16)
    for step, mind in at.items():
        kept.add(Checkpoint(step, [], [], {"Ada": mind}, 0.0, None))
    return Minds(tmp_path, "0" * 16, META, memories)


LIST = Memories("memory.nodes", created_s="made")


def steps_of(found: dict[str, Any]) -> list[int]:
    return [shown["step"] for shown in found["memories"]]


def test_memories_until_a_step(tmp_path: Path) -> None:
    at = {
        step: {"memory": {"nodes": [memory(made) for made in range(0, step, 2)]}}
        for step in (4, 10)
    }
    found = opened(tmp_path, LIST, at)
    assert steps_of(found.mind(0, 3)) == [2, 0]
    assert steps_of(found.mind(0, 6)) == [6, 4, 2, 0]
    assert found.mind(0, 6)["note"] is None
    late = found.mind(0, 11)
    assert steps_of(late) == [8, 6, 4, 2, 0]
    assert late["note"] == "As of the checkpoint of step 10."
    assert found.mind(1, 3)["memories"] is None  # it is kept in the store
    with pytest.raises(NoChunkError, match="there is no agent 2"):
        found.mind(2, 3)


def test_the_newest_memories_are_first_whatever_their_order_in_the_mind(tmp_path: Path) -> None:
    nodes = [memory(made) for made in (2, 0, 3, 1)]
    found = opened(tmp_path, LIST, {4: {"memory": {"nodes": nodes}}})
    assert steps_of(found.mind(0, 4)) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "mind",
    [None, 3, [], {}, {"memory": 3}, {"memory": {"nodes": 3}}, {"memory": {"nodes": [3, None]}}],
)
def test_minds_of_another_form(tmp_path: Path, mind: Any) -> None:
    assert opened(tmp_path, LIST, {4: mind}).mind(0, 3)["memories"] in ([], None)


def test_memories_of_another_form(tmp_path: Path) -> None:
    nodes = [memory(0, {"a": [1]}), {"made": "now"}, memory(-3, None)]
    found = opened(tmp_path, LIST, {4: {"memory": {"nodes": nodes}}}).mind(0, 4)
    assert [shown["text"] for shown in found["memories"]] == ["", "", '{"a": [1]}']
    assert steps_of(found) == [0, 0, 0]


def test_the_newest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minds, "MEMORIES_MAX", 2)
    nodes = [memory(step) for step in range(4)]
    found = opened(tmp_path, LIST, {4: {"memory": {"nodes": nodes}}}).mind(0, 9)
    assert steps_of(found) == [3, 2]


def test_a_mind_without_a_list(tmp_path: Path) -> None:
    found = opened(tmp_path, None, {4: {"name": "Ada", "rumours": ["é"]}}).mind(0, 4)
    assert found["memories"] == [
        {"text": '["é"]', "kind": "rumours", "step": 0},
        {"text": "Ada", "kind": "name", "step": 0},
    ]
