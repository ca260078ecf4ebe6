"""What a dispatcher is told of simulated engines."""

from __future__ import annotations

from metropolis._core import Profile
from metropolis.dispatch.base import Fleet


def fleet_of(engine: Profile, instances: int) -> Fleet:
    """Engines of a profile; an answer grows as it does when half of the sequences decode."""
    together = engine.max_sequences / 2
    iteration_ms = (
        max(engine.w_ms, engine.g_ms * together + engine.h_ms)
        + engine.b_ms * together
        + engine.k_ms * engine.kv_capacity_tokens
    )
    return Fleet(instances, engine.kv_capacity_tokens, 1000 / iteration_ms)
