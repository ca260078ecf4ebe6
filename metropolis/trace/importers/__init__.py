"""Import of recordings of other projects: movement here, LLM calls in `calls`.

The format is recognised by content, never by name. Add new formats to `FORMATS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from metropolis.maps.map import GridMap
from metropolis.trace.importers import genagent, positions
from metropolis.trace.importers.clamp import clamp, off_walls
from metropolis.trace.importers.files import read_json
from metropolis.trace.importers.recording import MIDNIGHT, Recording
from metropolis.trace.schema import Calls, Float32, Trace, TraceMeta
from metropolis.trace.validate import (
    place_in,
    validate,
    validate_meta,
    validate_moves,
    validate_positions,
)
from metropolis.types import MetropolisError

STEP_S = 10.0
VELOCITY = 1.0


@dataclass(frozen=True)
class Format:
    """A movement format of one JSON file."""

    shape: str
    recognise: Callable[[Any], bool]
    read: Callable[[Any, Path], Recording]


FORMATS = (
    Format("{step: {name: {movement: [x, y]}}}", genagent.is_master, genagent.read_master),
    Format("{agents, x, y}", positions.is_columns, positions.read_columns),
    Format("{name: [[x, y], ...]}", positions.is_tracks, positions.read_tracks),
)


@dataclass(frozen=True)
class Import:
    """An imported trace, without calls, and the whole recording."""

    trace: Trace
    recording: Recording
    clamped: int
    """Number of agent-steps whose position was changed because of jumps."""


def read_recording(path: str | Path) -> Recording:
    """Read movement in any known format, plain or gzipped."""
    path = Path(path)
    if os.path.isdir(path):  # returns False where Path.is_dir raises
        if genagent.is_folder(path):
            return genagent.read_folder(path)
        if not os.path.isfile(path / "master_movement.json"):
            raise MetropolisError(
                f"{path}: is a folder without recorded steps; it should have environment/0.json,"
                " movement/0.json or master_movement.json"
            )
        path = path / "master_movement.json"
    content = read_json(path)
    for known in FORMATS:
        if known.recognise(content):
            return known.read(content, path)
    raise MetropolisError(
        f"{path}: is JSON but not a movement; it should have one of the shapes"
        f" {'; '.join(known.shape for known in FORMATS)}"
    )


def import_recording(
    path: str | Path,
    *,
    radius: float | None = None,
    velocity: float | None = None,
    step_s: float | None = None,
    start: datetime | None = None,
    metric: str = "chebyshev",
    map: GridMap | None = None,
    jumps: Literal["error", "clamp"] = "error",
) -> Import:
    """Read movement as a trace; arguments override values in the file.

    The defaults are steps of 10 s, from midnight, and a velocity of 1 (a faster move is a jump).
    Raises `MetropolisError` naming file, step and agent.
    """
    recording = read_recording(path)
    if not recording.agents:
        raise MetropolisError(f"{path}: the movement names no agents; it should have at least one")
    radius = radius if radius is not None else recording.radius
    if radius is None:
        raise MetropolisError(f"{path}: has no perception radius; give it with --radius")
    meta = TraceMeta(
        name=recording.name,
        agents=recording.agents,
        perception_radius=float(radius),
        max_velocity=_first_given(velocity, recording.velocity, VELOCITY),
        metric=metric,
        step_s=_first_given(step_s, recording.step_s, STEP_S),
        start=start or recording.start or MIDNIGHT,
        map=map,
        source=recording.source,
    )
    validate_meta(meta, path)
    place = place_in(path, meta.agents)
    with np.errstate(over="ignore"):  # overflow yields infinity, which is refused below
        tracks: Float32 = recording.positions.astype(np.float32)
    recorded = tracks
    if jumps == "clamp" and map is not None:
        tracks = off_walls(tracks, map)
    advice = "" if jumps == "clamp" else "; with --jumps clamp it stands on the nearest such tile"
    validate_positions(tracks, map, place, advice)
    moving = replace(meta, metric=recording.movement_metric or metric)
    if jumps == "clamp":
        tracks = clamp(tracks, moving, path)
    else:
        advice = "; with --jumps clamp the agent walks along its recorded track"
        validate_moves(tracks, moving, place, advice)
    clamped = int((tracks != recorded).any(axis=2).sum())
    trace = Trace(meta, tracks, Calls.empty(), shown=recording.shown)
    validate(trace, path)
    return Import(trace, replace(recording, positions=tracks), clamped)


def _first_given(*values: float | None) -> float:
    return float(next(value for value in values if value is not None))
