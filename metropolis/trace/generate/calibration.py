"""The constants of `calibration.toml`, typed; the file gives their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Range = tuple[float, float]


@dataclass(frozen=True)
class MovementFit:
    """Daily routines; hours of the day, lengths in hours."""

    step_s: float
    perception_radius: float
    grid_steps: int
    task_grids: tuple[int, ...]
    task_share: tuple[float, ...]
    stay: float
    outing: float
    spots_considered: int
    wake_h: Range
    work_h: Range
    lunch_h: Range
    lunch_length_h: Range
    lunch_home: float
    leave_h: Range
    errand_length_h: Range
    dinner_length_h: Range
    dinner_out: float
    evening_out: float
    bed_h: Range


@dataclass(frozen=True)
class DayFit:
    """Calls by hour of the day."""

    calls: tuple[float, ...]
    """(24,): calls per 25 agents."""
    hour_sd: float
    planned_hours: int


@dataclass(frozen=True)
class PerceptionFit:
    """Perceptions of new events."""

    silent_change: float
    object_event: float
    neighbour_event: float
    approach_object: float
    walking_weight: float
    most_rate: float
    most_per_step: int
    group_share: tuple[float, ...]
    task_decomp: float


@dataclass(frozen=True)
class ConversationFit:
    """Frequency and length of conversations."""

    per_25_agents: tuple[float, ...]
    """(24,): conversations per hour of the day."""
    together_steps: int
    candidate_every_steps: int
    most_utterances: int
    full_length: float
    length_steps: tuple[int, int]
    cooldown_steps: int
    refusals: float
    reactions: float


@dataclass(frozen=True)
class ReflectionFit:
    """Frequency and size of reflections."""

    every_perceptions: float
    focal_points: int
    thoughts: tuple[int, int]


@dataclass(frozen=True)
class FunctionFit:
    """Tokens of one function."""

    prompt: tuple[float, float, float]
    """Low, mean, high; before `prompt_scale`."""
    output: float
    most_output: int
    prefix: str
    """`function`: all its calls share a prefix; `agent`: the prefix is the agent's description."""
    prefix_share: float
    """Length of the common prefix as a share of the lowest prompt length."""
    failing: float = 0.0
    """Share of answers that do not parse, so that the call is repeated."""


@dataclass(frozen=True)
class Calibration:
    """All parameters of the generator."""

    movement: MovementFit
    day: DayFit
    perception: PerceptionFit
    conversation: ConversationFit
    reflection: ReflectionFit
    chains: Mapping[str, tuple[str, ...]]
    """Trigger -> the functions it calls, in order."""
    functions: Mapping[str, FunctionFit]
    model: str
    prompt_scale: float
    output_sd: float
    most_attempts: int


def _load() -> Calibration:
    text = (files("metropolis.trace.generate") / "calibration.toml").read_text("utf-8")

    def frozen(value: Any) -> Any:
        return tuple(frozen(v) for v in value) if isinstance(value, list) else value

    table: dict[str, Any] = {
        name: {key: frozen(value) for key, value in section.items()}
        for name, section in tomllib.loads(text).items()
    }
    return Calibration(
        MovementFit(**table["movement"]),
        DayFit(**table["day"]),
        PerceptionFit(**table["perception"]),
        ConversationFit(**table["conversation"]),
        ReflectionFit(**table["reflection"]),
        table["chains"],
        {name: FunctionFit(**row) for name, row in table["functions"].items()},
        **table["tokens"],
    )


CALIBRATION = _load()
