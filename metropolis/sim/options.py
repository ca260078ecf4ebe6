"""Options of an engine beyond its profile: memory and scheduling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Preemption = Literal["recompute", "swap", "swap_all"]
"""Treatment of a preempted request's KV: dropped, or copied to the host. "swap" copies a block when
the prefix cache drops it, "swap_all" all blocks at once, and all of them back, as vLLM 0.6. Both
need the profile's host and PCIe fields."""

Schedule = Literal["mixed", "prefill_first"]
"""Whether prefills share iterations with decoding requests or precede them in their own."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The options of `metropolis._core.InstancePool`."""

    prefix_reuse: bool = False
    """Whether KV of earlier requests that is still in memory is reused."""
    preemption: Preemption = "recompute"
    decision_iterations: int = 1
    schedule: Schedule = "mixed"
    chunked_prefill: bool = True
    watermark: float = 0.0
    """Share of the KV blocks that admission leaves free unless the instance is empty."""
    surplus: bool = False
    """Whether preempted requests decode in the places of those that complete between decisions."""
