"""Randomness keyed by agent and step, independent of the order of execution."""

from __future__ import annotations

from random import Random

from metropolis.types import Step


def keyed_random(seed: int, agent: str, step: Step, purpose: str) -> Random:
    """A separate generator for every (seed, agent, step, purpose)."""
    return Random(f"{seed}/{agent}/{step}/{purpose}")
