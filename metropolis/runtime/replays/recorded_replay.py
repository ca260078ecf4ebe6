"""A replay on disk, for the viewer: its trace, and the timeline of each mode.

replay.json            the modes, and the setting in words
trace.parquet          the replayed trace
MODE/timeline/         docs/timeline-format.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

import numpy as np

from metropolis.durable import check_format, read_object, reported, write_object
from metropolis.runtime.replays.modes import MODES
from metropolis.runtime.replays.replay import ReplayResult
from metropolis.timeline.columns import Calls, Executions, Timeline
from metropolis.timeline.format import FOLDER, Meta
from metropolis.timeline.writer import write_timeline
from metropolis.trace.parquet import IN_RUN, write_trace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError

FORMAT, VERSION = "metropolis-replay", 1
INDEX = "replay.json"
_REPAIR = "record the replay again"
_SETTING = ("fleet", "policy", "dispatcher", "metric", "hours", "prefix_reuse")


@dataclass(frozen=True)
class RecordedReplay:
    """The contents of replay.json."""

    lanes: tuple[str, ...]
    """The modes: each has a folder of this name."""
    setting: Mapping[str, Any]
    """The fields of `ReplayResult` that are equal in all modes: fleet, policy and so on."""


def prepare_folder(folder: Path) -> None:
    """Make the folder of a new recorded replay, before any long work.

    Raises MetropolisError if it is not empty or cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MetropolisError(f"{folder}: exists already; record into a new folder")
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)


def record_replays(
    folder: Path, trace: Trace, results: Sequence[ReplayResult], file: Path | None = None
) -> None:
    """Write the timelines of `results`: replays of `trace` in different modes, else equal.

    Bounds have no timeline and are left out. `file`: what contains just this trace; None: nothing.
    Whatever fails, such as a full disk, leaves the folder empty.
    """
    try:
        _write(folder, trace, results, file)
    except BaseException:
        for path in folder.iterdir():
            if path.is_dir():
                rmtree(path)
            else:
                path.unlink()
        raise


def _write(folder: Path, trace: Trace, results: Sequence[ReplayResult], file: Path | None) -> None:
    lanes = [result for result in results if not MODES[result.mode].is_bound]
    if file is None:
        write_trace(trace, folder / IN_RUN)
    else:
        with reported(folder):
            copyfile(file, folder / IN_RUN)
    for result in lanes:
        write_timeline(folder / result.mode / FOLDER, timeline_of(trace, result))
    names = [result.mode for result in lanes]
    setting = {name: getattr(results[0], name) for name in _SETTING}
    setting["reuse"] = results[0].reuse and results[0].reuse["name"]
    content = {"format": FORMAT, "version": VERSION, "trace": IN_RUN, "lanes": names}
    write_object(folder / INDEX, content | {"setting": setting})


def read_recorded_replay(folder: Path) -> RecordedReplay:
    """Read replay.json. Raises MetropolisError if it is damaged, or of another format."""
    path = folder / INDEX
    found = read_object(path, _REPAIR)
    check_format(path, found, FORMAT, VERSION, _REPAIR)
    lanes, setting = found.get("lanes"), found.get("setting")
    if not isinstance(lanes, list) or not isinstance(setting, dict):
        raise MetropolisError(f"{path}: lacks lanes or setting; {_REPAIR}")
    return RecordedReplay(tuple(map(str, lanes)), setting)


def timeline_of(trace: Trace, result: ReplayResult) -> Timeline:
    """The timeline of a replay of `trace`; `result` is not that of a bound."""
    rows, calls = trace.steps * trace.agents, trace.calls
    step, agent = np.divmod(np.arange(rows, dtype=np.int32), np.int32(max(1, trace.agents)))
    row_of_call = calls.step.astype(np.int64) * trace.agents + calls.agent
    unknown = np.full(rows, np.nan)
    executions = Executions(
        step,
        agent,
        result.dispatched_sim_s,
        result.committed_sim_s,
        unknown,
        unknown,
        result.blocked_by,
        result.cluster,
        result.wasted if len(result.wasted) else np.zeros(rows, np.int32),
    )
    none = np.zeros(len(calls), np.bool_)
    return Timeline(
        Meta(clock="simulated", run=result.mode, agents=trace.agents, number=0),
        executions,
        Calls(
            calls.step,
            calls.agent,
            (np.arange(len(calls)) - trace.call_offsets()[row_of_call]).astype(np.int32),
            calls.function,
            calls.model,
            result.instance,
            result.sent_sim_s,
            result.started_sim_s,
            result.completed_sim_s,
            calls.prompt_tokens,
            calls.output_tokens,
            none,
            none,
            tuple(calls.functions),
            tuple(calls.models),
        ),
    )
