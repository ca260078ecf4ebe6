"""The sides that a folder has: a run, or the lanes of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from metropolis.names import check_name
from metropolis.progress import progress_bar
from metropolis.runtime.folder.comparison import check_same_world
from metropolis.runtime.folder.edits import edited_entities
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.view_file import read_view
from metropolis.runtime.replays.modes import MODES, OUT_OF_ORDER
from metropolis.runtime.replays.recorded_replay import INDEX, read_recorded_replay, record_replays
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.timeline.format import FOLDER
from metropolis.trace.parquet import IN_RUN, read_trace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from metropolis.viewer.data.call_texts import RecordedTexts, TraceTexts
from metropolis.viewer.data.history_steps import HistorySteps
from metropolis.viewer.data.locks import is_locked
from metropolis.viewer.data.minds import Minds
from metropolis.viewer.data.side import Side, Steps
from metropolis.viewer.data.timeline_columns import TimelineColumns
from metropolis.viewer.data.trace_steps import TraceSteps

KNOWN_ANSWERS = "Answers that were known from before took no time: durations may lack theirs."
PROFILE = "llama-3-8b/l4"
"""Instances for the replay of a run that names none."""
USUAL_RACE = ("lockstep", "versioned")
"""The lanes that are shown of a replay that has them, unless others are named."""
RACED = tuple(name for name, mode in MODES.items() if not mode.is_bound)


def open_run(folder: Path) -> Side:
    """The run in `folder`. Raises MetropolisError if there is none, or its files are damaged."""
    directory = RunDirectory(folder)
    about = directory.read()["about"]
    view, meta = read_view(folder, directory.run)
    steps = HistorySteps(directory.history, directory.run, view, meta, edited_entities(directory))
    return Side(
        {
            "title": folder.resolve().name,
            "kind": "run",
            "mode": view.mode,
            "target": view.target,
            "forked": _forked(directory),
            "prices": _prices(about),
        },
        meta,
        steps,
        TimelineColumns(folder / FOLDER, len(meta.agents)),
        RecordedTexts(directory.calls, steps.calls),
        Minds(folder, directory.run, meta, view.appearance.memories),
        lambda: is_locked(directory.journal),
        note=KNOWN_ANSWERS if directory.may_lack_answers(resumed=directory.starts > 0) else None,
    )


def _prices(about: Mapping[str, Any]) -> list[float] | None:
    """Prices of a million tokens of prompts, and of answers; None: the run has none."""
    prices = [about.get(name) for name in ("price_in", "price_out")]
    if all(isinstance(price, float | int) for price in prices):
        return [float(price) for price in prices if price is not None]
    return None


def _forked(directory: RunDirectory) -> dict[str, Any] | None:
    """The run, the step and the edits that a branch was made from; None: it is no branch."""
    if not directory.lineage:
        return None
    branch = directory.lineage[-1]
    edits = [branch.edit] if branch.edit else []
    return {"run": branch.run, "step": branch.step, "edits": [*edits, *branch.edited]}


def open_sides(folder: Path, beside: str | None = None) -> list[Side]:
    """The sides that `metropolis view FOLDER --beside BESIDE` shows.

    `folder` is that of a run, and `beside` that of another one, or a mode in which to replay the
    run; or `folder` is that of a recorded replay, and `beside` one of its lanes. Raises
    MetropolisError.
    """
    if (folder / INDEX).exists():
        return _open_lanes(folder, beside)
    if beside is None:
        return [open_run(folder)]
    if not Path(beside).exists() and beside in RACED:
        return race(folder, beside)
    check_same_world(folder, beside)
    return [open_run(folder), open_run(Path(beside))]


def _open_lanes(folder: Path, beside: str | None) -> list[Side]:
    recorded = read_recorded_replay(folder)
    lanes = [lane for lane in recorded.lanes if lane in MODES]
    if not lanes:
        raise MetropolisError(f"{folder / INDEX}: has no lanes; record a replay of a mode")
    if beside is not None:
        check_name("lane", beside, lanes)
        lanes = [lanes[0], beside]
    elif {*USUAL_RACE} <= {*lanes}:
        lanes = [*USUAL_RACE]
    trace = read_trace(folder)
    setting = recorded.setting
    note = f"Simulated on {setting.get('fleet')}, policy {setting.get('policy')}."
    return [_lane(folder / lane, lane, trace, TraceSteps(trace), note) for lane in lanes[:2]]


def _lane(folder: Path, mode: str, trace: Trace, steps: Steps, note: str) -> Side:
    return Side(
        {
            "title": mode,
            "kind": "replay",
            "mode": mode,
            "target": trace.steps,
            "forked": None,
            "prices": None,
        },
        trace.meta,
        steps,
        TimelineColumns(folder / FOLDER, trace.agents),
        TraceTexts(trace),
        None,
        note=note,
    )


def race(folder: Path, mode: str) -> list[Side]:
    """The trace of the run in `folder`, replayed in `mode` and in the run's mode.

    Raises MetropolisError if it has no trace yet, or if both modes are the same.
    """
    run = open_run(folder)
    own = OUT_OF_ORDER.get(run.fixed["mode"], run.fixed["mode"])
    if mode == own:
        raise MetropolisError(
            f"{folder}: is a run in the mode {mode}; name another mode to race against it"
        )
    trace = read_trace(folder)
    about = RunDirectory(folder).read()["about"]
    profile, count = about.get("profile", PROFILE), about.get("instances", 1)
    instance = about.get("instance")
    fleet = SimulatedFleet.parse(instance) if instance else SimulatedFleet.uniform(profile, count)
    setting = replace(Setting.of(trace.meta, fleet), **_plug_ins(about))
    with progress_bar(2 * trace.steps * trace.agents, "agent-steps") as (advance, describe):
        results = []
        for each in (mode, own):
            describe(f"replaying in {each}")
            results.append(replay(trace, each, setting, None, advance))
    with TemporaryDirectory() as lanes:  # its content is in memory once it is opened
        record_replays(Path(lanes), trace, results, folder / IN_RUN)
        note = (
            f"Simulated on {fleet}, policy {setting.policy}: the calls of {run.fixed['title']}, "
            "replayed."
        )
        return [_lane(Path(lanes) / of.mode, of.mode, trace, run.steps, note) for of in results]


def _plug_ins(about: Mapping[str, Any]) -> dict[str, Any]:
    """The run's plug-ins as fields of a Setting; those of its gateway were for real engines."""
    if about.get("engine"):
        return {}
    names = ("policy", "dispatcher", "reuse")
    return {name: about[name] for name in names if about.get(name) is not None}
