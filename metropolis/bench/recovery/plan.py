"""Whom a campaign kills, and when: a function of its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

Victim = Literal["worker", "controller", "store", "node", "file"]
VICTIMS: tuple[Victim, ...] = ("worker", "controller", "store", "node", "file")
"""A file is damaged while the controller, which was killed, is away."""
PAUSE_MAX_S = 6.0
"""Between what one kill has ended being back and the next kill; starting Ray takes 2 to 6 s."""
AWAY_MAX_S = 1.5
"""How long a store or a node stays away."""
CLUSTER_SHARE = 0.75
"""Of the runs: on a Ray of two nodes that is there before; the others begin a Ray of their own."""


@dataclass(frozen=True)
class Kill:
    """One `kill -9`."""

    victim: Victim
    pause_s: float
    which: float
    """Picks one of several, from 0 to below 1."""
    away_s: float


def draw_kills(count: int, seed: int) -> list[Kill]:
    """The kills of a campaign, victims in equal shares and any order."""
    draw = Random(f"kills {seed}")
    victims = [VICTIMS[i % len(VICTIMS)] for i in range(count)]
    draw.shuffle(victims)
    return [
        Kill(victim, draw.uniform(0, PAUSE_MAX_S), draw.random(), draw.uniform(0, AWAY_MAX_S))
        for victim in victims
    ]


def on_cluster(seed: int, run: int) -> bool:
    """Whether the run of that number uses the Ray that is there before it."""
    return Random(f"where {seed} {run}").random() < CLUSTER_SHARE
