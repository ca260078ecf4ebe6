"""Randomness that depends on who draws and when in the story, never on the order of execution."""

from __future__ import annotations

from random import Random

from metropolis.types import Step


def keyed_random(seed: int, agent: str, step: Step, purpose: str) -> Random:
    """A generator of its own for every (seed, agent, step, purpose)."""
    return Random(f"{seed}/{agent}/{step}/{purpose}")
