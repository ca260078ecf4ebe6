"""What a dispatcher is told of simulated engines."""

from __future__ import annotations

from metropolis._core import InstancePool, Profile
from metropolis.dispatch.base import Fleet


def fleet_of(engine: Profile, instances: int) -> Fleet:
    """Engines of a profile; an answer grows as it does when half of the sequences decode."""
    tokens = engine.kv_capacity_tokens
    iteration_s = InstancePool.iteration_sim_s(engine, engine.max_sequences // 2, tokens)
    return Fleet(instances, tokens, 1 / iteration_s)
