"""Options of an engine beyond its profile: memory and scheduling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Preemption = Literal["recompute", "swap"]
"""Treatment of a preempted request's KV; "swap" needs the profile's host and PCIe fields."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The options of `metropolis._core.InstancePool`."""

    prefix_reuse: bool = False
    """Whether KV of earlier requests that is still in memory is reused."""
    preemption: Preemption = "recompute"
    decision_iterations: int = 1
