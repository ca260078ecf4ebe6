"""The victims and times of a campaign's kills, drawn from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Victim = Literal["worker", "controller", "store", "node", "file"]
VICTIMS: tuple[Victim, ...] = ("worker", "controller", "store", "node", "file")
"""A file is damaged after the controller is killed, before it restarts."""
IN_PROCESS: tuple[Victim, ...] = ("controller", "store", "file")
"""The victims of a run whose worker is in the controller's process."""
PAUSE_MAX_S = 6.0
"""Pause between the recovery from a kill and the next kill; starting Ray takes 2 to 6 s."""
AWAY_MAX_S = 1.5
"""Maximum downtime of a store or a node."""
CLUSTER_SHARE = 0.75
"""Share of runs on an existing Ray cluster of two nodes; the others start their own."""


@dataclass(frozen=True)
class Kill:
    """One `kill -9`."""

    victim: Victim
    pause_s: float
    which: float
    """Selects one of several victims; in [0, 1)."""
    away_s: float


def draw_kills(count: int, seed: int, victims: Sequence[Victim] = VICTIMS) -> list[Kill]:
    """Draw the kills of a campaign: `victims` in equal shares and random order."""
    draw = Random(f"kills {seed}")
    drawn = [victims[i % len(victims)] for i in range(count)]
    draw.shuffle(drawn)
    return [
        Kill(victim, draw.uniform(0, PAUSE_MAX_S), draw.random(), draw.uniform(0, AWAY_MAX_S))
        for victim in drawn
    ]


def on_cluster(seed: int, run: int) -> bool:
    """Return whether run number `run` uses the existing Ray cluster."""
    return Random(f"where {seed} {run}").random() < CLUSTER_SHARE
