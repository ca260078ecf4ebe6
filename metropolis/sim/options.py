"""What an engine does with memory and time that its profile leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Preemption = Literal["recompute", "swap"]
"""What becomes of the KV of the preempted; "swap" needs the profile's host and PCIe fields."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """As those of `metropolis._core.InstancePool`."""

    prefix_reuse: bool = False
    """What is still there of an earlier request is not computed again."""
    preemption: Preemption = "recompute"
    decision_iterations: int = 1
