"""Movement in every format that can be imported, made from a trace."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from metropolis.trace.schema import Calls, Float32, Trace, TraceMeta

DATE = "%B %d, %Y"


def walkers(seed: int, agents: int, steps: int) -> Trace:
    """Agents that stand or walk one 4-neighbour tile a step; nobody moves in step 0."""
    draw = np.random.default_rng(seed)
    moves = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])[
        draw.integers(0, 5, (steps, agents))
    ]
    moves[:2] = 0
    positions = (np.cumsum(moves, axis=0) + draw.integers(0, 20, (agents, 2))).astype(np.float32)
    meta = TraceMeta("", tuple(f"Agent {a}" for a in range(agents)), 4, 1)
    return Trace(meta, positions, Calls.empty())


def tiles(trace: Trace, step: int) -> dict[str, list[int]]:
    """Whole tiles by name."""
    at = trace.positions[min(step, trace.steps - 1)].astype(int).tolist()
    return dict(zip(trace.meta.agents, at, strict=True))


def dump(path: Path, content: Any, *, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def environment(trace: Trace, folder: Path) -> Path:
    for step in range(trace.steps):
        stand = {n: {"maze": "m", "x": x, "y": y} for n, (x, y) in tiles(trace, step).items()}
        dump(folder / "environment" / f"{step}.json", stand)
    return folder


def movement(trace: Trace, folder: Path) -> Path:
    for step in range(trace.steps):
        moves = {name: {"movement": tile} for name, tile in tiles(trace, step + 1).items()}
        dump(folder / "movement" / f"{step}.json", {"persona": moves, "meta": {}})
    return folder


def master(trace: Trace, folder: Path) -> Path:
    """Agents that neither move nor do anything new are left out."""
    content: dict[str, Any] = {}
    for step in range(trace.steps):
        here, before = tiles(trace, step + 1), tiles(trace, step)
        content[str(step)] = {
            name: {"movement": tile, "chat": None}
            for name, tile in here.items()
            if step == 0 or tile != before[name]
        }
    return dump(folder / "master_movement.json", content)


def tracks(trace: Trace, folder: Path) -> Path:
    positions = trace.positions.transpose(1, 0, 2).tolist()
    return dump(folder / "day.json", dict(zip(trace.meta.agents, positions, strict=True)))


def wrapped_tracks(trace: Trace, folder: Path) -> Path:
    content = {
        "positions": json.loads(tracks(trace, folder).read_text()),
        "perception_radius": trace.meta.perception_radius,
        "max_velocity": trace.meta.max_velocity,
        "seconds_per_step": trace.meta.step_s,
        "start": "00:00",
    }
    return dump(folder / "wrapped.json.gz", content, packed=True)


def columns(trace: Trace, folder: Path) -> Path:
    x, y = trace.positions.transpose(2, 1, 0).astype(int).tolist()
    content = {
        "agents": trace.meta.agents,
        "x": x,
        "y": y,
        "sec_per_step": 10,
        "start": trace.meta.start.isoformat(),
        "hyper": {"vision_r": trace.meta.perception_radius},
    }
    return dump(folder / "columns.json", content)


def run_meta(trace: Trace, folder: Path, sec_per_step: int, step_s: int) -> Path:
    """A run's meta.json, `sec_per_step` being what it claims and `step_s` what was the case."""
    now = trace.meta.start + timedelta(seconds=trace.steps * step_s)
    content = {
        "start_date": trace.meta.start.strftime(DATE),
        "curr_time": now.strftime(f"{DATE}, %H:%M:%S"),
        "sec_per_step": sec_per_step,
        "step": trace.steps,
    }
    return dump(folder / "meta.json", content)


FORMATS = (environment, movement, master, tracks, wrapped_tracks, columns)


def with_jump(positions: Float32, step: int, agent: int, by: tuple[int, int]) -> Float32:
    """From `step` on the agent is somewhere else."""
    moved = positions.copy()
    moved[step:, agent] += np.array(by, np.float32)
    return moved
