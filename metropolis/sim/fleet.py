"""What a dispatcher is told of simulated engines, and how much they can take."""

from __future__ import annotations

from collections.abc import Sequence

from metropolis._core import InstancePool, Profile
from metropolis.dispatch.base import Fleet
from metropolis.trace.programs import Program


def fleet_of(engine: Profile, instances: int) -> Fleet:
    """Engines of a profile; an answer grows as it does when half of the sequences decode."""
    tokens = engine.kv_capacity_tokens
    iteration_s = InstancePool.iteration_sim_s(engine, engine.max_sequences // 2, tokens)
    return Fleet(instances, tokens, 1 / iteration_s)


def busy_rate_per_s(sample: Sequence[Program], fleet: Fleet) -> float:
    """Programs a second whose answers keep all KV memory in use, from a sample of them.

    A request holds its prompt and, on average, half of its answer while that grows.
    """
    held_token_s = sum(
        (call.prompt_tokens + call.output_tokens / 2) * call.output_tokens / fleet.tokens_per_s
        for program in sample
        for call in program.calls
    )
    return fleet.instances * fleet.capacity_tokens / (held_token_s / len(sample))
