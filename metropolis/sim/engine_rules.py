"""The scheduling rules of real engines, for simulated instances."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from metropolis._core import Profile
from metropolis.sim.options import PoolOptions, Schedule


@dataclass(frozen=True, slots=True)
class EngineRules:
    """How an engine fills its iterations by default."""

    name: str
    source: str
    schedule: Schedule = "mixed"
    chunked_prefill: bool = True
    watermark: float = 0.0
    chunk_tokens: int | None = None
    """New tokens per iteration; None: those of the profile."""

    def options(self) -> PoolOptions:
        """The options of a pool with these rules."""
        return PoolOptions(
            schedule=self.schedule, chunked_prefill=self.chunked_prefill, watermark=self.watermark
        )

    def profile(self, profile: Profile) -> Profile:
        """A copy of `profile` with these rules."""
        changed = copy(profile)
        changed.chunk_tokens = self.chunk_tokens or profile.chunk_tokens
        return changed


VLLM = EngineRules(
    "vllm",
    "vLLM v1: decoding first, prefills in chunks beside it, no watermark "
    "(vllm/v1/core/sched/scheduler.py)",
)
VLLM_V0 = EngineRules(
    "vllm-v0",
    "vLLM v0 without chunked prefill: whole prompts first, in iterations of their own, while 1 % "
    "of the blocks stay free (vllm/core/scheduler.py, _schedule_default; block_manager.py). Its "
    "budget is the context length; 16,384 here",
    "prefill_first",
    chunked_prefill=False,
    watermark=0.01,
    chunk_tokens=16_384,
)
SGLANG = EngineRules(
    "sglang",
    "SGLang without --enable-mixed-chunk: prefills first, in chunks and iterations of their own "
    "(managers/scheduler.py, schedule_policy.py). 8,192 tokens on all cards, its "
    "chunked_prefill_size on an H100 or H200 (smaller on smaller cards), which limits a batch "
    "before max_prefill_tokens (16,384). It also reserves memory for tokens that running requests "
    "may still generate; that is not simulated",
    "prefill_first",
    chunk_tokens=8_192,
)
ENGINE_RULES = {rules.name: rules for rules in (VLLM, VLLM_V0, SGLANG)}
