"""JSON files with one track per agent: by name, or as columns of x and y."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metropolis.trace.importers.recording import Recording, parse_number, parse_start, parse_tracks
from metropolis.trace.validate import check_slips
from metropolis.types import MetropolisError

NUMBERS = {
    "radius": ("perception_radius", "radius"),
    "velocity": ("max_velocity", "velocity"),
    "step_s": ("seconds_per_step", "sec_per_step", "step_s"),
}
"""Number beside the tracks -> its names; the first one present is used."""


def is_tracks(content: Any) -> bool:
    """Whether `content` is {name: [[x, y], ...]}, plain or under `positions`."""
    if not isinstance(content, dict):
        return False
    tracks = content.get("positions", content)
    return (
        isinstance(tracks, dict)
        and bool(tracks)
        and any(isinstance(track, list) for track in tracks.values())
    )


def read_tracks(content: dict[str, Any], path: Path) -> Recording:
    """Read {name: [[x, y], ...]}, or {positions: ..., perception_radius: ..., ...}."""
    wrapped = content if "positions" in content else {}
    tracks = content["positions"] if wrapped else content
    numbers = (name for names in NUMBERS.values() for name in names)
    others = ("positions", "name", "source", "start", "steps")
    check_slips(wrapped, [*numbers, *others], f"{path}")

    def number(field: str) -> float | None:
        name = next((n for n in NUMBERS[field] if wrapped.get(n) is not None), None)
        return None if name is None else parse_number(wrapped[name], f"{path}: {name}")

    start = wrapped.get("start")
    return Recording(
        agents=tuple(tracks),
        positions=parse_tracks(tracks, str(path), 2),
        name=str(wrapped.get("name", stem(path))),
        source=str(wrapped.get("source", path.name)),
        radius=number("radius"),
        velocity=number("velocity"),
        step_s=number("step_s"),
        start=None if start is None else parse_start(start, f"{path}: start"),
    )


def is_columns(content: Any) -> bool:
    """Whether `content` is {agents: [name, ...], x: [[...], ...], y: [[...], ...]}."""
    return isinstance(content, dict) and "agents" in content and ("x" in content or "y" in content)


def read_columns(content: dict[str, Any], path: Path) -> Recording:
    """Read repacked GenAgent runs: agent a is at x[a][t], y[a][t] at the beginning of step t."""
    agents = content["agents"]
    named = isinstance(agents, list) and all(isinstance(name, str) for name in agents)
    if not named or not agents or len(set(agents)) < len(agents):
        raise MetropolisError(f"{path}: agents should be a list of different names")
    axes = []
    for axis in ("x", "y"):
        tracks = content.get(axis)
        if not isinstance(tracks, list) or len(tracks) != len(agents):
            raise MetropolisError(
                f"{path}: {axis} should be a list of {len(agents)} tracks, one per agent"
            )
        axes.append(parse_tracks(dict(zip(agents, tracks, strict=True)), f"{path}, {axis}", 1))
    if axes[0].shape != axes[1].shape:
        raise MetropolisError(
            f"{path}: x has {len(axes[0])} steps and y {len(axes[1])}; they should be equal"
        )
    hyper = content.get("hyper")
    radius = hyper.get("vision_r") if isinstance(hyper, dict) else None
    step_s, start = content.get("sec_per_step"), content.get("start")
    return Recording(
        agents=tuple(agents),
        positions=np.concatenate(axes, axis=2),
        name=str(content.get("run", stem(path))),
        source=_source(content.get("source"), path),
        radius=None if radius is None else parse_number(radius, f"{path}: hyper.vision_r"),
        movement_metric="manhattan",
        step_s=None if step_s is None else parse_number(step_s, f"{path}: sec_per_step"),
        start=None if start is None else parse_start(start, f"{path}: start"),
    )


def stem(path: Path) -> str:
    """The file's name up to its first dot."""
    return path.name.split(".")[0]


def _source(source: Any, path: Path) -> str:
    if isinstance(source, dict):
        return ", ".join(str(value) for value in source.values())
    return str(source or path.name)
