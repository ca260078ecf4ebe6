"""The Fleet of simulated engines, and the load that keeps it busy."""

from __future__ import annotations

from collections.abc import Sequence

from metropolis._core import InstancePool, Profile
from metropolis.dispatch.base import Fleet
from metropolis.trace.programs import Program


def fleet_of(engine: Profile, instances: int) -> Fleet:
    """A fleet of `engine`; decode speed is that of a batch of half the maximum sequences."""
    tokens = engine.kv_capacity_tokens
    iteration_s = InstancePool.iteration_sim_s(engine, engine.max_sequences // 2, tokens)
    return Fleet(instances, tokens, 1 / iteration_s)


def busy_rate_per_s(sample: Sequence[Program], fleet: Fleet) -> float:
    """Programs per second that keep all KV memory in use, estimated from a sample.

    During decoding a request holds its prompt and, on average, half of its answer.
    """
    held_token_s = sum(
        (call.prompt_tokens + call.output_tokens / 2) * call.output_tokens / fleet.tokens_per_s
        for program in sample
        for call in program.calls
    )
    return fleet.instances * fleet.capacity_tokens / (held_token_s / len(sample))
