"""The Fleet of simulated engines, and the load that keeps it busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from metropolis._core import InstancePool, Profile
from metropolis.dispatch.base import Fleet
from metropolis.trace.programs import Program


def fleet_of(engine: Profile, instances: int) -> Fleet:
    """A fleet of equal engines; decode speed is that of a batch of half the maximum sequences."""
    tokens = engine.kv_capacity_tokens
    iteration_s = InstancePool.iteration_sim_s(engine, engine.max_sequences // 2, tokens)
    return Fleet.uniform(instances, tokens, 1 / iteration_s)


def busy_rate_per_s(sample: Sequence[Program], fleet: Fleet) -> float:
    """Programs per second that keep all KV memory in use, estimated from a sample.

    During decoding a request holds its prompt and, on average, half of its answer.
    """

    def held_token_s(tokens_per_s: float) -> float:
        held = sum(
            (call.prompt_tokens + call.output_tokens / 2) * call.output_tokens / tokens_per_s
            for program in sample
            for call in program.calls
        )
        return held / len(sample)

    return sum(
        count * instance.capacity_tokens / held_token_s(instance.tokens_per_s)
        for instance, count in Counter(fleet.instances).items()
    )
