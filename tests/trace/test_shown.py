"""What agents show in a trace: its file, its windows, and imports of Generative Agents' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.trace.importers import import_recording
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.trace.schema import Calls, Trace, TraceMeta
from metropolis.trace.shown import Lines, Shown
from metropolis.trace.summary import summarise
from metropolis.types import MetropolisError
from metropolis.world.appearance import Look

STEPS, AGENTS = 6, 3
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
CHANGES = st.dictionaries(
    st.tuples(st.integers(0, STEPS - 1), st.integers(0, AGENTS - 1)),
    st.tuples(st.builds(Look, TEXT, TEXT, TEXT), st.lists(st.tuples(TEXT, TEXT), max_size=2)),
)


def trace_of(shown: tuple[Shown, ...] | None) -> Trace:
    meta = TraceMeta("t", tuple("abc"), 4, 1)
    return Trace(meta, np.zeros((STEPS, AGENTS, 2), np.float32), Calls.empty(), shown=shown)


def at(trace: Trace, step: int) -> dict[int, tuple[Look, Lines]]:
    """What each agent shows at a step."""
    assert trace.shown is not None
    return {of.agent: (of.look, of.lines) for of in trace.shown if of.step <= step}


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, first=st.integers(0, STEPS - 1), length=st.integers(1, STEPS))
def test_a_file_and_windows_keep_what_is_shown(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[Any, Any], first: int, length: int
) -> None:
    shown = (
        Shown(step, agent, look, tuple(lines))
        for (step, agent), (look, lines) in sorted(changes.items())
    )
    trace = trace_of(tuple(shown))
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    write_trace(trace, path)
    assert read_trace(path).shown == trace.shown
    last = min(STEPS, first + length)
    part = trace.window(first, last)
    for step in range(part.steps):
        assert at(part, step) == at(trace, first + step)
    assert at(trace.first_agents(2), STEPS) == {
        agent: what for agent, what in at(trace, STEPS).items() if agent < 2
    }


def test_a_trace_that_knows_nothing_has_no_column(tmp_path: Path) -> None:
    write_trace(trace_of(None), tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").shown is None
    with pytest.raises(MetropolisError, match="not in order"):
        write_trace(trace_of((Shown(9, 0, Look("a")),)), tmp_path / "t.parquet")


def entry(x: int, what: str, chat: Any = None) -> dict[str, Any]:
    return {"movement": [x, 0], "pronunciatio": "🍞", "description": what, "chat": chat}


CHAT = [["Ann", "Hello &amp; welcome."], ["Ben", "Hi."]]
SLEEPS, BAKES, TALKS = (
    "sleeping @ the town:Ash house:bedroom:bed",
    "baking @ the town:Cafe:kitchen",
    "talking @ <persona> Ben",
)
MOVES = [
    {"Ann": entry(0, SLEEPS), "Ben": entry(5, SLEEPS)},
    {"Ann": entry(1, BAKES), "Ben": entry(5, SLEEPS)},
    {"Ann": entry(1, TALKS, CHAT), "Ben": entry(5, SLEEPS, CHAT)},
    {"Ann": entry(1, TALKS, CHAT), "Ben": entry(5, "idle")},
    {"Ann": entry(2, BAKES), "Ben": entry(5, "idle")},
]
LINES = (("Ann", "Hello & welcome."), ("Ben", "Hi."))
WANTED = (
    Shown(0, 0, Look("sleeping", "🍞", "Ash house: bedroom: bed")),
    Shown(0, 1, Look("sleeping", "🍞", "Ash house: bedroom: bed")),
    Shown(2, 0, Look("baking", "🍞", "Cafe: kitchen")),
    Shown(3, 0, Look("talking", "🍞", "<persona> Ben"), LINES),
    Shown(3, 1, Look("sleeping", "🍞", "Ash house: bedroom: bed"), LINES),
    Shown(4, 1, Look("idle", "🍞")),
)


def written(root: Path, form: str) -> Path:
    if form == "master":
        path = root / "master_movement.json"
        path.write_text(json.dumps(dict(enumerate(MOVES))))
        return path
    (root / "movement").mkdir()
    for step, moves in enumerate(MOVES):
        (root / "movement" / f"{step}.json").write_text(json.dumps({"persona": moves}))
    if form == "environment":
        (root / "environment").mkdir()
        for step, moves in enumerate([MOVES[0], *MOVES]):
            tiles = {
                name: dict(zip("xy", of["movement"], strict=True)) for name, of in moves.items()
            }
            (root / "environment" / f"{step}.json").write_text(json.dumps(tiles))
    return root


@pytest.mark.parametrize("form", ["master", "movement", "environment"])
def test_imports_keep_activities_and_conversations(tmp_path: Path, form: str) -> None:
    trace = import_recording(written(tmp_path, form), radius=4).trace
    last = (Shown(5, 0, Look("baking", "🍞", "Cafe: kitchen")),) if form == "environment" else ()
    assert trace.shown == WANTED + last
    summary = summarise(trace)
    assert (summary.activities, summary.conversations) == (3 + len(last), 1)


@pytest.mark.parametrize("chat", ["Hello.", ["Hello."]])
def test_a_chat_without_speakers_is_the_agents(tmp_path: Path, chat: object) -> None:
    path = tmp_path / "master_movement.json"
    path.write_text(json.dumps({"0": {"Ann": entry(0, SLEEPS, chat)}}))
    shown = import_recording(path, radius=4).trace.shown
    assert shown is not None
    assert [of.lines for of in shown] == [(("Ann", "Hello."),)]


@pytest.mark.parametrize(
    ("field", "value"), [("chat", 3), ("chat", [["Ann"]]), ("description", 3), ("pronunciatio", 3)]
)
def test_bad_texts_are_refused(tmp_path: Path, field: str, value: object) -> None:
    moves = {"0": {"Ann": entry(0, SLEEPS) | {field: value}}}
    path = tmp_path / "master_movement.json"
    path.write_text(json.dumps(moves))
    with pytest.raises(MetropolisError, match=f"Ann.*{field}"):
        import_recording(path, radius=4)
